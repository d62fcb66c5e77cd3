"""A cap on bytes per second: for the connections of one download together, and for all downloads of a node."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from ray_model_serving.store.locks import HeldLock, open_lock

_RECOUNT_S = 1.0
# More downloads than this share as if they were this many; the files and the look at each of them are bounded.
_MOST_DOWNLOADS = 32


class RateCap:
    """Lends time: :meth:`delay_s` says how long to wait before the bytes may be read. None: no cap.

    ``downloads`` counts those who share the cap, this one included; it is asked about once a second.
    """

    def __init__(self, max_bytes_per_s: float | None, downloads: Callable[[], int] = lambda: 1) -> None:
        self._max_bytes_per_s = max_bytes_per_s
        self._downloads = downloads
        self._lock = threading.Lock()
        self._free_at = self._counted_at = time.monotonic()
        self._sharing = downloads() if max_bytes_per_s else 1

    def delay_s(self, length: int) -> float:
        """Book ``length`` bytes and return the seconds until they may be read."""
        if not self._max_bytes_per_s:
            return 0.0
        with self._lock:
            now = time.monotonic()
            if now - self._counted_at >= _RECOUNT_S:
                self._sharing, self._counted_at = max(1, self._downloads()), now
            start = max(now, self._free_at)
            self._free_at = start + length * self._sharing / self._max_bytes_per_s
            return start - now


@contextmanager
def node_rate_cap(locks: Path, max_bytes_per_s: float | None) -> Generator[RateCap]:
    """This download's equal share of a cap that all downloads of a node keep together, whatever process they are in.

    Each holds the lock of a file in ``locks`` while it runs, and counts the held ones; the kernel frees the lock of a
    process that dies, so that its share goes to the others within a second. Where locks do not work, each download
    takes the whole cap.
    """
    if not max_bytes_per_s:
        yield RateCap(None)
        return
    paths = [locks / f"download-{number}" for number in range(_MOST_DOWNLOADS)]
    own = _first_free(paths)
    try:
        yield RateCap(max_bytes_per_s, lambda: _held(paths, own))
    finally:
        if own:
            own.release()


def _first_free(paths: list[Path]) -> HeldLock | None:
    for path in paths:
        lock = open_lock(path)
        if lock.try_exclusive():
            return lock
        lock.release()
    return None


def _held(paths: list[Path], own: HeldLock | None) -> int:
    """How many downloads run. Looked at with the shared lock, so that two who count do not count each other."""
    count = 1
    for path in paths:
        if (own and path == own.path) or not path.exists():
            continue
        lock = open_lock(path)
        count += not lock.try_shared()
        lock.release()
    return count
