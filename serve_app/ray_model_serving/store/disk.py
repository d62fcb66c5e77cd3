"""The cache's file system: room that is taken at once and named when it is not there, and files that go away."""

import errno
import logging
import os
import shutil
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ray_model_serving.contract.cache_format import DIRECTORY_MODE
from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.store.errors import CacheNotWritableError, IoFailedError, NoSpaceError

log = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
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
    make_directories(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        if size_bytes:
            os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        os.close(descriptor)
        raise_if_full(error, path, size_bytes)
        raise
    return descriptor


def make_directories(path: Path) -> None:
    """Make a directory and what it is in, each writable for the group at once: others of it may have to remove them."""
    for directory in (*reversed(path.parents), path):
        if not directory.exists():
            directory.mkdir(exist_ok=True)
            directory.chmod(DIRECTORY_MODE)  # mkdir's own mode is cut by the umask


def typed(error: OSError, path: Path) -> ModelServingError:
    """The typed error for one of the operating system, on ``path`` unless it names another."""
    where = f"{error.filename or path}: {error.strerror or error}"
    if error.errno in _FULL:
        return NoSpaceError(where, hint="prune the cache, or give it a larger disk or budget")
    if error.errno in _FORBIDDEN:
        return CacheNotWritableError(
            f"{where} (uid {os.geteuid()}, gid {os.getegid()})", hint="check owner, group and mode of the directory"
        )
    return IoFailedError(where, hint="check the disk and the limits of this process, then try again")


@contextmanager
def typed_errors(path: Path) -> Generator[None]:
    """Raises the typed error in the place of an OSError, see :func:`typed`."""
    try:
        yield
    except OSError as error:
        raise typed(error, path) from error


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
