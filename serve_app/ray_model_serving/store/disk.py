"""Room on the cache's file system: asked for before the first byte, taken at once, and named when it is not there."""

import errno
import os
from pathlib import Path

from ray_model_serving.store.errors import NoSpaceError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def check_space(directory: Path, needed_bytes: int) -> None:
    """Raises :class:`NoSpaceError` before the first byte is fetched."""
    status = os.statvfs(directory)
    free_bytes = status.f_bavail * status.f_frsize
    if needed_bytes > free_bytes:
        raise _no_space(directory, f"{free_bytes} bytes are free", needed_bytes)


def _no_space(path: Path, state: str, needed_bytes: int) -> NoSpaceError:
    return NoSpaceError(
        f"{path}: the model needs {needed_bytes} bytes on this file system, {state}",
        hint="remove snapshots that are not in use, or give the cache a larger disk",
    )


def allocate(path: Path, size_bytes: int) -> int:
    """Create a file with all its blocks, so that a full disk shows now and not at 90 %."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
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
        raise _no_space(path, error.strerror or "the disk is full", needed_bytes) from error


def write_all(descriptor: int, block: bytes, offset: int) -> None:
    """Write a whole block at an offset; several threads may write to one descriptor."""
    view = memoryview(block)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count
