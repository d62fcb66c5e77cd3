"""A cap on bytes per second, for the connections of one process together."""

import threading
import time


class RateCap:
    """Lends time: :meth:`delay_s` says how long to wait before the bytes may be read. None: no cap."""

    def __init__(self, max_bytes_per_s: float | None) -> None:
        self._max_bytes_per_s = max_bytes_per_s
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def delay_s(self, length: int) -> float:
        """Book ``length`` bytes and return the seconds until they may be read."""
        if not self._max_bytes_per_s:
            return 0.0
        with self._lock:
            now = time.monotonic()
            start = max(now, self._free_at)
            self._free_at = start + length / self._max_bytes_per_s
            return start - now
