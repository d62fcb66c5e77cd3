"""Peak anonymous and file-backed memory of this process while something runs, from ``/proc/self/status``.

``ru_maxrss`` will not do: it counts mapped files, which replicas share and the kernel may drop.
"""

import logging
import threading
from types import TracebackType

from ray_model_serving.host_memory import Resident, read_resident

log = logging.getLogger(__name__)

# Short beside the copy of any tensor that matters; with 3 ms a warm load took 5 % longer.
_INTERVAL_S = 0.01


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
        now = read_resident()
        if now is None:
            log.warning("the kernel does not say how much memory this process has: peaks are reported as 0")
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
        now, before = read_resident(), self._baseline
        if now is None or before is None:
            return
        self.peak_anon_bytes = max(self.peak_anon_bytes, now.anon_bytes - before.anon_bytes)
        self.peak_file_bytes = max(self.peak_file_bytes, now.file_bytes - before.file_bytes)
