"""Downloads in progress: ``staging/<snapshot-id>.<unique>/`` with ``files/`` and a journal of what they hold.

The snapshot's lock is the only proof of life: the kernel frees it when its holder dies, in every container of the node
and across reboots, so no process id, host name or clock has to be believed. Whoever holds it exclusively may adopt what
is left, after reading it again.
"""

import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ray_model_serving.contract.cache_format import CacheLayout, FileEntry, Manifest
from ray_model_serving.store import checksums
from ray_model_serving.store.disk import make_directories, remove
from ray_model_serving.store.journal import NAME as JOURNAL
from ray_model_serving.store.journal import read_claims
from ray_model_serving.store.locks import open_lock
from ray_model_serving.store.parts import Extent, Extents, total_bytes

log = logging.getLogger(__name__)

# What is left of a download is kept this long for a later run, unless its room is needed before. It is also longer than
# the longest deadline of the settings (one day): without working locks, only such age says that nobody works on it.
KEPT_S = 2 * 86_400.0
_READ_BYTES = 1024**2
# Downloads, and what was moved aside. Nothing else in the directory is ours to judge.
_OURS = re.compile(r"(?:[0-9a-f]{32}|compiled-[^.]+)\..+")


@dataclass(frozen=True, kw_only=True)
class Staging:
    """The private directory of one download, on the file system of the snapshots."""

    path: Path
    present: Extents = field(default_factory=dict[str, list[Extent]])
    """What an earlier run left and was read again."""

    @property
    def files(self) -> Path:
        return self.path / "files"


def new_staging(layout: CacheLayout, identity: str) -> Staging:
    """An empty one."""
    staging = Staging(path=layout.staging / f"{identity}.{uuid.uuid4().hex}")
    make_directories(staging.files)
    return staging


def left_of(layout: CacheLayout, identity: str) -> list[Path]:
    """Staging directories of a snapshot."""
    return [path for path in _all(layout) if path.name.partition(".")[0] == identity]


def adopt(layout: CacheLayout, manifest: Manifest, readers: int) -> Staging | None:
    """Go on with what a dead download of this snapshot left, the one with the most; the others of it are removed.

    The caller holds the snapshot's lock exclusively. Directories of another version of the library are left alone.
    """
    identity = manifest.snapshot_id
    sizes = {entry.path: entry.size_bytes for entry in manifest.files}
    left = left_of(layout, identity)
    found = {path: claims for path in left if (claims := read_claims(path, identity, sizes)) is not None}
    usable = [path for path in found if _is_own(path)]
    best = max(usable, key=lambda path: total_bytes(found[path]), default=None)
    for path in left:
        if path != best and (path in found or _is_removable(path)):
            log.info("removing %s, left by a fetch that did not finish", path.name)
            remove(path)
    if best is None:
        return None
    present = _read_again(best / "files", manifest.files, found[best], readers)
    log.info(
        "going on with %s: %d of %d bytes are there and read again",
        best.name,
        total_bytes(present),
        manifest.size_bytes,
    )
    return Staging(path=best, present=present)


def sweep(layout: CacheLayout) -> None:
    """Remove what dead downloads left and nobody will go on with: without a journal of ours, or too old."""
    for path in _all(layout):
        if not _OURS.fullmatch(path.name) or not _is_removable(path):
            continue
        lock = open_lock(layout.lock(path.name.partition(".")[0]))
        try:
            # Where locks don't work, taking one says nothing about the owner, and only age counts.
            if lock.try_exclusive() and (lock.is_exclusive or _is_old(path)):
                log.info("removing %s, left by a fetch that did not finish", path.name)
                remove(path)
        finally:
            lock.release()


def _is_removable(path: Path) -> bool:
    return _is_old(path) or not (path / JOURNAL).exists()


def _is_old(path: Path) -> bool:
    """Untouched for longer than any fetch may take. A time in the future, from a clock that jumped, is not old."""
    try:
        newest = max(item.stat().st_mtime for item in (path, path / JOURNAL) if item.exists())
    except (OSError, ValueError):
        return False  # it went away
    return time.time() - newest > KEPT_S


def _all(layout: CacheLayout) -> list[Path]:
    try:
        return sorted(layout.staging.iterdir())
    except OSError:
        return []


def _is_own(path: Path) -> bool:
    """Files that another user staged can't be made read-only by this one, so they are not gone on with."""
    try:
        return os.geteuid() in (0, path.stat().st_uid)
    except OSError:
        return False


def _read_again(files: Path, entries: Sequence[FileEntry], claims: Extents, readers: int) -> Extents:
    """The claims that the bytes on disk agree with."""
    jobs = [(entry, extent) for entry in entries for extent in claims.get(entry.path, ())]

    def holds(job: tuple[FileEntry, Extent]) -> bool:
        entry, extent = job
        try:
            path = files / entry.path
            if path.is_symlink():
                return False
            with path.open("rb", buffering=0) as file:
                return _crc_of(file.fileno(), extent, checksums.journal_crc(entry.checksum_type).update) == extent.crc
        except OSError:
            return False

    with ThreadPoolExecutor(max_workers=readers, thread_name_prefix="reread") as pool:
        kept = [job for job, good in zip(jobs, pool.map(holds, jobs), strict=True) if good]
    present: dict[str, list[Extent]] = {}
    for entry, extent in kept:
        present.setdefault(entry.path, []).append(extent)
    return present


def _crc_of(descriptor: int, extent: Extent, update: Callable[[bytes, int], int]) -> int | None:
    value, position, end = 0, extent.offset, extent.offset + extent.length
    while position < end:
        block = os.pread(descriptor, min(_READ_BYTES, end - position), position)
        if not block:
            return None
        value, position = update(block, value), position + len(block)
    return value
