"""The cache's file system: room that is taken at once and named when it is not there, and files that go away."""

import errno
import logging
import os
import shutil
import stat
from pathlib import Path

from ray_model_serving.store.errors import NoSpaceError

log = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)
# Locks and renames are weaker there, and mapped weights fault in over the network page by page.
_NETWORK_TYPES = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "fuse.mount-s3", "fuse.s3fs", "9p")


def free_bytes(directory: Path) -> int:
    """What an unprivileged process can still write there."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def used_bytes(path: Path) -> int:
    """Bytes that files take on disk, one or all below a directory; what vanishes meanwhile counts as nothing."""
    total = 0
    for item in (path, *path.rglob("*")):
        try:
            status = item.lstat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            total += status.st_blocks * 512  # the unit of st_blocks, whatever the file system's own is
    return total


def no_space(path: Path, state: str, needed_bytes: int) -> NoSpaceError:
    """The error for a model that does not fit; ``state`` says what is there."""
    return NoSpaceError(
        f"{path}: the model needs {needed_bytes} bytes more on this file system, {state}",
        hint="see `ray-model cache list`; prune what is not in use, or give the cache a larger disk or budget",
    )


def allocate(path: Path, size_bytes: int) -> int:
    """Open a file for writing with all its blocks, so that a full disk shows now and not at 90 %."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        if size_bytes:
            os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        os.close(descriptor)
        raise_if_full(error, path, size_bytes)
        raise
    return descriptor


def raise_if_full(error: OSError, path: Path, needed_bytes: int) -> None:
    """Raises :class:`NoSpaceError` for an error that says that disk or quota are full, else does nothing."""
    if error.errno in _FULL:
        raise no_space(path, error.strerror or "the disk is full", needed_bytes) from error


def write_all(descriptor: int, block: bytes | memoryview, offset: int) -> None:
    """Write a whole block at an offset; several threads may write to one descriptor."""
    view = memoryview(block)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


def sync(path: Path) -> None:
    """fsync a file or directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or tree by unlink; what is gone already is fine, and what can't be removed is logged."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s can't be removed: %s", path, error.strerror)


def network_type(path: Path) -> str | None:
    """The type of the network file system that ``path`` is on, or None where it is a local one or can't be known."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    best, kind = Path(), None
    for line in mounts:
        # Format: proc_pid_mountinfo(5); the type comes after a lone hyphen.
        left, _, right = line.partition(" - ")
        point = Path(left.split()[4].replace("\\040", " "))
        if path.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, kind = point, right.split()[0]
    return kind if kind in _NETWORK_TYPES else None
