"""Snapshots in a node's cache, as a fetch leaves them there, without a store."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emulators.models import write_files
from ray_model_serving.contract.cache_format import CacheLayout, FileEntry, Manifest
from ray_model_serving.store import Snapshot, cache
from ray_model_serving.store.checksums import of_file
from ray_model_serving.store.locks import HeldLock, open_lock
from ray_model_serving.store.report import snapshot_of
from ray_model_serving.store.staging import new_staging

NewSnapshot = Callable[[dict[str, bytes]], Snapshot]


@pytest.fixture
def layout(tmp_path: Path) -> CacheLayout:
    found = CacheLayout(tmp_path / "cache")
    cache.prepare(found)
    return found


@pytest.fixture
def new_snapshot(layout: CacheLayout) -> Iterator[NewSnapshot]:
    """Files to a whole snapshot with checksums in the node's cache, held as a replica holds it."""
    held: list[HeldLock] = []

    def make(files: dict[str, bytes]) -> Snapshot:
        staging = new_staging(layout, "new")
        write_files(staging.files, files)
        kind = "CRC64NVME/FULL_OBJECT"
        entries = [
            FileEntry(
                path=n, key=n, size_bytes=len(c), etag="", checksum=of_file(staging.files / n, kind), checksum_type=kind
            )
            for n, c in sorted(files.items())
        ]
        manifest = Manifest(source="s3://models/m/", files=tuple(entries))
        cache.publish(layout, staging, manifest, open_lock(layout.lock(manifest.snapshot_id)))
        lock = open_lock(layout.lock(manifest.snapshot_id))
        assert lock.try_shared()
        held.append(lock)
        return snapshot_of(layout.snapshot(manifest.snapshot_id), manifest, {}, source="node", lock=lock)

    yield make
    for lock in held:
        lock.release()


@pytest.fixture(autouse=True)
def compilers_environment() -> Iterator[None]:
    """Each test begins and ends without the compilers' directories; loads set them, and so does torch itself."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    yield
    for name in names:
        os.environ.pop(name, None)
    os.environ.update(before)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """A memory sampler that outlives its load would count other loads' memory."""
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "memory-sampler"]
