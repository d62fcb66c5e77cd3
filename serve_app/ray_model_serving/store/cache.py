"""The node's cache directory: is a snapshot whole, how does one become visible, how does a broken one go away.

Nothing under ``snapshots/`` is ever edited: a snapshot appears by one rename and goes by another, so that whoever has
it mapped keeps the old bytes.
"""

import errno
import logging
import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from ray_model_serving.contract.cache_format import (
    DIRECTORY_MODE,
    FILE_MODE,
    RECORD_NAME,
    CacheLayout,
    Manifest,
    UnreadableRecordError,
)
from ray_model_serving.store.errors import CacheNotWritableError
from ray_model_serving.store.locks import open_lock

log = logging.getLogger(__name__)


def find_whole(layout: CacheLayout, identity: str) -> Manifest | None:
    """The manifest of a snapshot that is whole, see :func:`examine`, or None."""
    return examine(layout, identity)[0]


def examine(layout: CacheLayout, identity: str) -> tuple[Manifest | None, str]:
    """A whole snapshot's manifest, or None and the reason.

    Whole: a readable record, and every file there with its size. Content was checked before the rename, and nothing
    writes to a snapshot afterwards.
    """
    try:
        manifest = Manifest.from_json(layout.record(identity).read_text(encoding="utf-8"))
        if manifest.snapshot_id != identity:
            return None, f"the record is that of snapshot {manifest.snapshot_id}"
        for entry in manifest.files:
            size_bytes = (layout.snapshot(identity) / entry.path).stat().st_size
            if size_bytes != entry.size_bytes:
                return None, f"{entry.path} has {size_bytes} bytes instead of {entry.size_bytes}"
    except OSError as error:
        return None, f"{error.filename}: {error.strerror}"
    except (UnreadableRecordError, UnicodeDecodeError) as error:
        return None, str(error)
    return manifest, ""


def prepare(layout: CacheLayout) -> None:
    """Make the directories of the format and try to write. Raises :class:`CacheNotWritableError` with uid and path."""
    for directory in (layout.root, layout.snapshots, layout.staging, layout.locks):
        try:
            if not directory.is_dir():
                directory.mkdir(parents=True, exist_ok=True)
                directory.chmod(DIRECTORY_MODE)  # mkdir's own mode is cut by the umask
            probe = directory / f".probe-{uuid.uuid4().hex}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise CacheNotWritableError(
                f"{directory}: the node cache is not writable for uid {os.geteuid()} (gid {os.getegid()}): "
                f"{error.strerror}",
                hint=f"prepare {layout.root} for this uid, as the init container of the RayService does; fsGroup does "
                "not apply to hostPath volumes",
            ) from error


def new_staging(layout: CacheLayout, identity: str) -> Path:
    """A private directory for one fetch, on the file system of the snapshots."""
    path = layout.staging / f"{identity}.{uuid.uuid4().hex}"
    path.mkdir()
    path.chmod(DIRECTORY_MODE)
    return path


def publish(layout: CacheLayout, staging: Path, manifest: Manifest) -> None:
    """Sync everything, write the record last, and make the snapshot visible by one rename.

    Another fetch that published first wins if its snapshot is whole; a broken one is moved aside.
    """
    identity = manifest.snapshot_id
    for entry in manifest.files:
        path = staging / entry.path
        path.chmod(FILE_MODE)
        _sync(path)
    record = staging / RECORD_NAME
    record.write_text(manifest.to_json(), encoding="utf-8")
    record.chmod(FILE_MODE)
    _sync(record)
    for directory in _directories(staging):
        directory.chmod(DIRECTORY_MODE)
        _sync(directory)
    target = layout.snapshot(identity)
    try:
        staging.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        if find_whole(layout, identity) is not None:
            remove(staging)
            return
        discard_broken(layout, identity)
        staging.rename(target)
    _sync(layout.snapshots)


def discard_broken(layout: CacheLayout, identity: str) -> None:
    """Move a snapshot out of sight, then unlink it; whoever maps its files keeps them until it lets go."""
    reason = examine(layout, identity)[1]
    aside = layout.staging / f"{identity}.{uuid.uuid4().hex}"
    try:
        layout.snapshot(identity).rename(aside)
    except FileNotFoundError:
        return
    log.warning("removing snapshot %s, which is not whole: %s", identity, reason)
    remove(aside)


def sweep(layout: CacheLayout) -> None:
    """Remove staging that no living fetch owns: whoever fetches holds the snapshot's lock, and death frees it."""
    try:
        found = sorted(layout.staging.iterdir())
    except OSError:
        return
    for path in found:
        lock = open_lock(layout.lock(path.name.partition(".")[0]))
        try:
            # Without a real lock nothing can be known about the owner, so the directory stays.
            if lock.try_exclusive() and lock.fd is not None:
                log.warning("removing %s, left by a fetch that did not finish", path.name)
                remove(path)
        finally:
            lock.release()


def sweep_own(layout: CacheLayout, identity: str) -> None:
    """Remove older staging of this snapshot; the caller holds its lock exclusively."""
    for path in layout.staging.glob(f"{identity}.*"):
        log.warning("removing %s, left by a fetch that did not finish", path.name)
        remove(path)


def remove(path: Path) -> None:
    """Remove a file or tree by unlink; what is gone already is fine."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s can't be removed: %s", path, error.strerror)


def _directories(root: Path) -> Iterable[Path]:
    """Deepest first, so that each directory is synced after what it holds."""
    nested = [path for path in root.rglob("*") if path.is_dir()]
    return [*sorted(nested, key=lambda path: len(path.parts), reverse=True), root]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
