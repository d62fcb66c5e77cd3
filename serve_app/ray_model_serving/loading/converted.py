"""The converted copy of a snapshot: made once per node, so that every later replica maps it as it is.

It is a snapshot of its own, in the cache's format and under the cache's rules, of weights alone: the other files are
the original's. It only saves time and memory: where it can't be kept, the load goes on without it.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ray_model_serving.contract.cache_format import CacheLayout, FileEntry, Manifest, converted_id
from ray_model_serving.contract.settings import Dtype
from ray_model_serving.loading.rewrite import Rewrite
from ray_model_serving.loading.weights import Weights
from ray_model_serving.store import Snapshot, cache
from ray_model_serving.store.checkpoint import SUFFIX, is_converted
from ray_model_serving.store.checksums import FULL_OBJECT, of_file
from ray_model_serving.store.disk import remove
from ray_model_serving.store.errors import CacheNotWritableError, LockTimeoutError, NoSpaceError
from ray_model_serving.store.locks import HeldLock, open_lock
from ray_model_serving.store.report import MTIME_ETAG, snapshot_of
from ray_model_serving.store.room import allocated
from ray_model_serving.store.staging import new_staging

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
                    lock.mark_use()
                    return snapshot_of(layout.snapshot(identity), manifest, {}, source="node", lock=lock)
            elif lock.try_exclusive() and cache.find_whole(layout, identity) is None:
                lock.sign()
                _make(snapshot, weights, dtype, copies, lock, deadline)
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
    snapshot: Snapshot, weights: Weights, dtype: Dtype, copies: ConvertedCopies, lock: HeldLock, deadline: float
) -> None:
    """Write and publish the copy, whose lock is held; older snapshots may go for it. A failure leaves nothing."""
    layout = copies.layout
    rewrite = Rewrite(weights=weights, dtype=dtype, shards=_shards(weights))
    source, parent = snapshot.manifest.source, snapshot.snapshot_id
    planned = Manifest(source=source, files=_entries(rewrite.file_sizes()), parent=parent, dtype=dtype.value)
    for left in layout.staging.glob(f"{planned.snapshot_id}.*") if lock.is_exclusive else ():
        remove(left)  # whoever made it died, or would hold the lock
    staging = new_staging(layout, planned.snapshot_id)
    try:
        with allocated(layout, staging, planned, budget_bytes=copies.budget_bytes, deadline=deadline):
            rewrite.write(staging.files, index=False)
        cache.publish(layout, staging, replace(planned, files=_with_checksums(planned, staging.files)), lock)
    except BaseException:
        remove(staging.path)
        raise


def _shards(weights: Weights) -> dict[str, list[str]]:
    """The files of the original, with the suffix of safetensors."""
    shards: dict[str, list[str]] = {}
    for name, path in weights.checkpoint.files.items():
        shards.setdefault(path if path.endswith(SUFFIX) else f"{path}{SUFFIX}", []).append(name)
    return shards


def _entries(sizes: Mapping[str, int]) -> tuple[FileEntry, ...]:
    return tuple(FileEntry(path=path, key=path, size_bytes=size, etag="") for path, size in sorted(sizes.items()))


def _with_checksums(manifest: Manifest, directory: Path) -> tuple[FileEntry, ...]:
    """The entries with what ``ray-model cache verify`` checks them by."""
    return tuple(
        replace(entry, checksum=of_file(directory / entry.path, _CHECKSUM_TYPE), checksum_type=_CHECKSUM_TYPE)
        for entry in manifest.files
    )
