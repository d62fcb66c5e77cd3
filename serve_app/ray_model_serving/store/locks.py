"""One flock per snapshot: it saves bandwidth and guards eviction, and is never what makes a snapshot whole.

The kernel frees a flock when its holder dies, however it dies, so there is no stale lock to guess about.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from ray_model_serving.store.disk import network_type

log = logging.getLogger(__name__)

# Another user of the group takes the same locks.
LOCK_MODE = 0o664
# Whoever may write to the directory could put a link to another file there, or a pipe that an open waits for.
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NOTE_BYTES = 512
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@dataclass
class HeldLock:
    """An open lock file.

    ``fd`` is None after the release, and where the file system has no locks: taking it succeeds there, since nobody
    may wait for what can't be had, but it says nothing about others.
    """

    path: Path
    fd: int | None
    is_exclusive: bool = False
    """Held so for certain. False where locks don't work, or may not reach those who share the directory."""

    def release(self) -> None:
        self.is_exclusive = False
        if self.fd is not None:
            fd, self.fd = self.fd, None
            os.close(fd)  # closing the descriptor is what frees the lock

    def try_exclusive(self) -> bool:
        """Take or convert to the exclusive lock without waiting."""
        taken = self._try(fcntl.LOCK_EX)
        self.is_exclusive = taken and self.fd is not None and self._excludes()
        return taken

    def try_shared(self) -> bool:
        """Take or convert to the shared lock without waiting. Converting may lose what was held, see flock(2)."""
        taken = self._try(fcntl.LOCK_SH)
        if taken:
            self.is_exclusive = False
        return taken

    def sign(self) -> None:
        """Leave a note of who holds the lock, for the error text of those who wait."""
        if self.fd is None:
            return
        try:
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except OSError:
            log.debug("no note in lock file %s", self.path)

    def mark_use(self) -> None:
        """Record a use of the snapshot in the lock file's time, which eviction goes by."""
        if self.fd is None:
            return
        try:
            os.utime(self.fd)
        except OSError:
            log.debug("no time of use on lock file %s", self.path)  # read-only, or another user's without our group

    def _try(self, operation: int) -> bool:
        if self.fd is None:
            return True
        try:
            fcntl.flock(self.fd, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            log.warning("this file system has no flock (%s); each process downloads for itself", error.strerror)
            self.release()
        return True

    def _excludes(self) -> bool:
        """Whether a second one is refused: some file systems give the lock to everyone, or to one on each machine."""
        if network_type(self.path) is not None:
            return False
        try:
            second = os.open(self.path, os.O_RDONLY | _FLAGS)
        except OSError:
            return False
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(second)
        log.warning("this file system gives the lock %s to everyone; each process downloads for itself", self.path)
        return False

    def holder(self) -> str:
        """Who wrote the last note; for error texts only."""
        if self.fd is None:
            return "an unnamed process"
        try:
            note = os.pread(self.fd, _NOTE_BYTES, 0).decode(errors="replace").strip()
        except OSError:
            note = ""
        return note or "an unnamed process"


def open_lock(path: Path) -> HeldLock:
    """Open a lock file without locking it. A read-only cache gives a lock that is held by name only."""
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        try:
            fd = os.open(path, flags | _FLAGS, LOCK_MODE)
        except OSError:
            continue
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            break
        with contextlib.suppress(OSError):  # open's own mode is cut by the umask; another user's file can't be changed
            os.fchmod(fd, LOCK_MODE)
        return HeldLock(path, fd)
    log.warning("lock file %s can't be opened; going on without it", path)
    return HeldLock(path, None)
