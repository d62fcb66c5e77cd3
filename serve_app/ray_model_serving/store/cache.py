"""The node's cache directory: is a snapshot whole, how does one become visible, how does a broken one go away.

Nothing under ``snapshots/`` is ever edited: a snapshot appears by one rename and goes by another, so that whoever has
it mapped keeps the old bytes.
"""

import errno
import logging
import os
import stat
import uuid
from collections.abc import Iterable
from pathlib import Path

from ray_model_serving.contract.cache_format import (
    DIRECTORY_MODE,
    FILE_MODE,
    RECORD_NAME,
    CacheLayout,
    Manifest,
    NewerRecordError,
    UnreadableRecordError,
)
from ray_model_serving.store.disk import network_type, remove, sync, typed_errors
from ray_model_serving.store.errors import CacheChangedError, CacheNotWritableError
from ray_model_serving.store.locks import HeldLock
from ray_model_serving.store.staging import Staging

log = logging.getLogger(__name__)

_PUBLISH_TRIES = 20


def find_whole(layout: CacheLayout, identity: str, resolved: Manifest | None = None) -> Manifest | None:
    """The manifest of a snapshot that is whole, see :func:`examine`, or None."""
    return examine(layout, identity, resolved)[0]


def examine(layout: CacheLayout, identity: str, resolved: Manifest | None = None) -> tuple[Manifest | None, str]:
    """A whole snapshot's manifest, or None and the reason.

    Whole: a readable record, and every file there with its size. Content was checked before the rename, and nothing
    writes to a snapshot afterwards. A record of a later library can't be read; ``resolved``, where the store has told
    what the id stands for, then takes its place.
    """
    return _examine(layout.snapshot(identity), identity, resolved)


def _examine(directory: Path, identity: str, resolved: Manifest | None) -> tuple[Manifest | None, str]:
    try:
        manifest = _read_record(directory / RECORD_NAME, resolved)
        if manifest.snapshot_id != identity:
            return None, f"the record is that of snapshot {manifest.snapshot_id}"
        for entry in manifest.files:
            size_bytes = (directory / entry.path).stat().st_size
            if size_bytes != entry.size_bytes:
                return None, f"{entry.path} has {size_bytes} bytes instead of {entry.size_bytes}"
    except OSError as error:
        return None, f"{error.filename}: {error.strerror}"
    except (UnreadableRecordError, ValueError) as error:  # not UTF-8, or a path that can't be one
        return None, str(error)
    return manifest, ""


def _read_record(path: Path, resolved: Manifest | None) -> Manifest:
    try:
        return Manifest.from_json(path.read_text(encoding="utf-8"))
    except NewerRecordError:
        if resolved is None:
            raise
        return resolved


def prepare(layout: CacheLayout) -> None:
    """Make the directories of the format and try to write. Raises :class:`CacheNotWritableError` with uid and path."""
    for directory in (layout.root, layout.snapshots, layout.staging, layout.locks):
        try:
            if not directory.is_dir():
                directory.mkdir(parents=True, exist_ok=True)
                # mkdir's own mode is cut by the umask; the group is inherited, so that several users can share it.
                directory.chmod(DIRECTORY_MODE | stat.S_ISGID)
            probe = directory / f".probe-{uuid.uuid4().hex}"
            probe.touch()
            probe.unlink(missing_ok=True)  # earlier versions swept it away
        except OSError as error:
            raise CacheNotWritableError(
                f"{directory}: the node cache is not writable for uid {os.geteuid()} (gid {os.getegid()}): "
                f"{error.strerror}",
                hint=f"prepare {layout.root} for this uid, as the init container of the RayService does; fsGroup does "
                "not apply to hostPath volumes",
            ) from error
    if kind := network_type(layout.root):
        log.warning(
            "the node cache %s is on a network file system (%s): its locks may not hold, so that processes download "
            "more than once and nothing is evicted, and mapped weights are slow; use a local disk",
            layout.root,
            kind,
        )


def publish(layout: CacheLayout, staging: Staging, manifest: Manifest, lock: HeldLock) -> None:
    """Sync everything, write the record last, and make the snapshot visible by one rename.

    Another fetch that published first wins if its snapshot is whole; a broken one is moved aside. Raises the typed
    errors of :func:`disk.typed`, and :class:`CacheChangedError` where others put broken ones there again and again.
    """
    with typed_errors(staging.path):
        _sync_all(staging.files, manifest)
        _make_visible(layout, staging.files, manifest, lock)
        sync(layout.snapshots)
    remove(staging.path)


def _sync_all(files: Path, manifest: Manifest) -> None:
    for entry in manifest.files:
        path = files / entry.path
        path.chmod(FILE_MODE)
        sync(path)
    record = files / RECORD_NAME
    record.write_text(manifest.to_json(), encoding="utf-8")
    record.chmod(FILE_MODE)
    sync(record)
    for directory in _directories(files):
        directory.chmod(DIRECTORY_MODE)
        sync(directory)


def _make_visible(layout: CacheLayout, files: Path, manifest: Manifest, lock: HeldLock) -> None:
    identity = manifest.snapshot_id
    for _ in range(_PUBLISH_TRIES):
        if _renamed(files, layout.snapshot(identity)) or find_whole(layout, identity, manifest) is not None:
            return
        discard(layout, manifest, lock)
    raise CacheChangedError(
        f"snapshot {identity}: broken ones took its place {_PUBLISH_TRIES} times while it was put there",
        hint="look at what else writes to this cache directory",
    )


def discard(layout: CacheLayout, manifest: Manifest, lock: HeldLock) -> None:
    """Move a broken snapshot out of sight by a rename; nothing happens if it is gone or has become whole.

    Its bytes are removed at once if ``lock`` says that nobody uses it; else the sweep does that when its users let go.
    Whoever has files mapped keeps them either way.
    """
    identity = manifest.snapshot_id
    aside, target = layout.staging / f"{identity}.{uuid.uuid4().hex}", layout.snapshot(identity)
    try:
        target.rename(aside)
    except FileNotFoundError:
        return
    whole, reason = _examine(aside, identity, manifest)
    if whole and _renamed(aside, target):
        return  # another one replaced it since the caller looked, so it goes back
    log.warning("removing snapshot %s: %s", identity, f"it is not whole: {reason}" if reason else "there are two")
    if lock.is_exclusive:
        remove(aside)


def _renamed(source: Path, target: Path) -> bool:
    """False where something is in the way."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        return False
    return True


def _directories(root: Path) -> Iterable[Path]:
    """Deepest first, so that each directory is synced after what it holds."""
    nested = [path for path in root.rglob("*") if path.is_dir()]
    return [*sorted(nested, key=lambda path: len(path.parts), reverse=True), root]
