"""Peak anonymous and file-backed memory of this process while something runs, from ``/proc/self/status``.

``ru_maxrss`` will not do: it counts mapped files, which replicas share and the kernel may drop.
"""

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

log = logging.getLogger(__name__)

_STATUS = Path("/proc/self/status")
_INTERVAL_S = 0.003


@dataclass(frozen=True, kw_only=True)
class Resident:
    """Resident memory of this process, in bytes."""

    anon_bytes: int
    file_bytes: int


def parse_status(text: str) -> Resident:
    """RssAnon and RssFile of a ``/proc/<pid>/status``; 0 where the kernel gives none."""
    values = dict(line.split(":", 1) for line in text.splitlines() if line.startswith("Rss"))
    kib = {name: int(value.split()[0]) for name, value in values.items()}
    return Resident(anon_bytes=kib.get("RssAnon", 0) * 1024, file_bytes=kib.get("RssFile", 0) * 1024)


def resident() -> Resident:
    """What this process has now; 0 where the kernel does not say."""
    return _read() or Resident(anon_bytes=0, file_bytes=0)


def _read() -> Resident | None:
    try:
        return parse_status(_STATUS.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, IndexError):
        return None


class PeakSampler:
    """Samples every few milliseconds in a thread, between ``with`` and its end.

    The peaks are over ``baseline``, or over what the process has when it begins. Where the kernel does not say, they
    stay 0 and the log has a line: a figure is no reason to fail a load.
    """

    def __init__(self, baseline: Resident | None = None) -> None:
        self.peak_anon_bytes = 0
        self.peak_file_bytes = 0
        self._baseline = baseline
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)

    def __enter__(self) -> "PeakSampler":
        now = _read()
        if now is None:
            log.warning("%s does not say how much memory this process has: peaks are reported as 0", _STATUS)
            return self
        self._baseline = self._baseline or now
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._thread.ident is None:
            return  # never started
        self._stop.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        now, before = _read(), self._baseline
        if now is None or before is None:
            return
        self.peak_anon_bytes = max(self.peak_anon_bytes, now.anon_bytes - before.anon_bytes)
        self.peak_file_bytes = max(self.peak_file_bytes, now.file_bytes - before.file_bytes)
