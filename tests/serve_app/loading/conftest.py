"""Snapshots in a node's cache, as a fetch leaves them there, without a store."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emulators.models import write_files
from ray_model_serving.contract.cache_format import CacheLayout, FileEntry, Manifest
from ray_model_serving.store import FetchReport, Snapshot, cache
from ray_model_serving.store.checksums import of_file

NewSnapshot = Callable[[dict[str, bytes]], Snapshot]


@pytest.fixture
def layout(tmp_path: Path) -> CacheLayout:
    found = CacheLayout(tmp_path / "cache")
    cache.prepare(found)
    return found


@pytest.fixture
def new_snapshot(layout: CacheLayout) -> NewSnapshot:
    """Files to a whole snapshot with checksums in the node's cache."""

    def make(files: dict[str, bytes]) -> Snapshot:
        staging = write_files(layout.staging / "new", files)
        kind = "CRC64NVME/FULL_OBJECT"
        entries = [
            FileEntry(
                path=n, key=n, size_bytes=len(c), etag="", checksum=of_file(staging / n, kind), checksum_type=kind
            )
            for n, c in sorted(files.items())
        ]
        manifest = Manifest(source="s3://models/m/", files=tuple(entries))
        cache.publish(layout, staging, manifest)
        path, identity = layout.snapshot(manifest.snapshot_id), manifest.snapshot_id
        report = FetchReport(snapshot_id=identity, path=path, seconds={}, files_by_check={})
        return Snapshot(path=path, snapshot_id=identity, manifest=manifest, report=report)

    return make


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """A memory sampler that outlives its load would count other loads' memory."""
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "memory-sampler"]
