"""The converted copy of a snapshot: made once per node, so that every later replica maps it as it is.

It is a snapshot of its own, in the cache's format and under the cache's rules, of weights alone: the other files are
the original's. It only saves time and memory: where it can't be kept, the load goes on without it.
"""

import logging
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from ray_model_serving.contract.cache_format import CacheLayout, FileEntry, Manifest, converted_id
from ray_model_serving.contract.settings import Dtype
from ray_model_serving.loading.rewrite import Rewrite
from ray_model_serving.loading.weights import Weights
from ray_model_serving.store import FetchReport, Snapshot, cache
from ray_model_serving.store.checkpoint import SUFFIX, is_converted
from ray_model_serving.store.checksums import FULL_OBJECT, of_file
from ray_model_serving.store.disk import free_bytes, no_space, remove, used_bytes
from ray_model_serving.store.errors import CacheNotWritableError, LockTimeoutError, NoSpaceError
from ray_model_serving.store.locks import HeldLock, open_lock
from ray_model_serving.store.report import MTIME_ETAG, files_by_check

log = logging.getLogger(__name__)

_CHECKSUM_TYPE = f"CRC64NVME/{FULL_OBJECT}"
_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class ConvertedCopies:
    """Where converted copies are kept: the node's cache, the most bytes it may hold, and how long to wait for one."""

    layout: CacheLayout
    budget_bytes: int | None = None
    deadline_s: float = 3600.0


def converted_copy(snapshot: Snapshot, weights: Weights, dtype: Dtype, copies: ConvertedCopies) -> Snapshot | None:
    """The copy of a snapshot in another type, made if the node has none, held by a shared lock until it is closed.

    None where there is nothing to convert, where the snapshot's content has no identity of its own, and where the cache
    has no room or can't be written to. Raises :class:`LockTimeoutError` when another process takes too long.
    """
    if not any(is_converted(tensor, dtype) for tensor in weights.checkpoint.tensors.values()):
        return None
    if any(entry.checksum is None and entry.etag.startswith(MTIME_ETAG) for entry in snapshot.manifest.files):
        # Equal times and sizes, as image builds make them, do not mean equal files: the copy could be another model's.
        log.info("%s is used in place: its converted weights are not kept", snapshot.path)
        return None
    try:
        return _find_or_make(snapshot, weights, dtype, copies)
    except (CacheNotWritableError, NoSpaceError) as error:
        log.warning("the converted weights are not kept, every replica converts for itself: %s", error)
        return None


def _find_or_make(snapshot: Snapshot, weights: Weights, dtype: Dtype, copies: ConvertedCopies) -> Snapshot:
    layout, identity = copies.layout, converted_id(snapshot.snapshot_id, dtype.value)
    if cache.find_whole(layout, identity) is None:
        cache.prepare(layout)
    lock = open_lock(layout.lock(identity))
    deadline = time.monotonic() + copies.deadline_s
    try:
        while True:
            if cache.find_whole(layout, identity) is not None:
                if lock.try_shared() and (manifest := cache.find_whole(layout, identity)):
                    return _held(layout, manifest, lock)
            elif lock.try_exclusive() and cache.find_whole(layout, identity) is None:
                _make(snapshot, weights, dtype, copies, identity, owns_staging=lock.fd is not None)
                continue
            if time.monotonic() > deadline:
                raise LockTimeoutError(
                    f"converted copy {identity}: waited {copies.deadline_s:g} s for {lock.holder()}",
                    hint="look at that process; its death frees the lock",
                )
            time.sleep(_POLL_S)
    except BaseException:
        lock.release()
        raise


def _make(
    snapshot: Snapshot, weights: Weights, dtype: Dtype, copies: ConvertedCopies, identity: str, *, owns_staging: bool
) -> None:
    """Write and publish the copy. A failure leaves nothing.

    Who holds the lock owns all staging of this copy: what is there was left by a process that died.
    """
    layout = copies.layout
    rewrite = Rewrite(weights=weights, dtype=dtype, shards=_shards(weights))
    _check_room(copies, rewrite.size_bytes)
    if owns_staging:
        for left in layout.staging.glob(f"{identity}.*"):
            remove(left)
    staging = layout.staging / f"{identity}.{uuid.uuid4().hex}"
    try:
        rewrite.write(staging, index=False)
        files = tuple(_entry(staging, path) for path in sorted(rewrite.shards))
        source = snapshot.manifest.source
        copy = Manifest(source=source, files=files, parent=snapshot.snapshot_id, dtype=dtype.value)
        cache.publish(layout, staging, copy)
    except BaseException:
        remove(staging)
        raise


def _shards(weights: Weights) -> dict[str, list[str]]:
    """The files of the original, with the suffix of safetensors."""
    shards: dict[str, list[str]] = {}
    for name, path in weights.checkpoint.files.items():
        shards.setdefault(path if path.endswith(SUFFIX) else f"{path}{SUFFIX}", []).append(name)
    return shards


def _entry(staging: Path, path: str) -> FileEntry:
    file = staging / path
    checksum = of_file(file, _CHECKSUM_TYPE)
    return FileEntry(
        path=path, key=path, size_bytes=file.stat().st_size, etag="", checksum=checksum, checksum_type=_CHECKSUM_TYPE
    )


def _check_room(copies: ConvertedCopies, needed_bytes: int) -> None:
    """Raises :class:`NoSpaceError` before the first byte."""
    root = copies.layout.root
    free = free_bytes(root)
    if needed_bytes > free:
        raise no_space(root, f"{free} bytes are free", needed_bytes)
    used = used_bytes(root) if copies.budget_bytes is not None else 0
    if copies.budget_bytes is not None and used + needed_bytes > copies.budget_bytes:
        raise no_space(root, f"{used} bytes are used of the budget of {copies.budget_bytes}", needed_bytes)


def _held(layout: CacheLayout, manifest: Manifest, lock: HeldLock) -> Snapshot:
    identity = manifest.snapshot_id
    path = layout.snapshot(identity)
    report = FetchReport(
        snapshot_id=identity,
        path=path,
        bytes_node=manifest.size_bytes,
        seconds={},
        files_by_check=files_by_check(manifest),
    )
    return Snapshot(path=path, snapshot_id=identity, manifest=manifest, report=report, lock=lock)
