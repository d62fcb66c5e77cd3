"""One fetch under way: its deadline, its clock, and who wants to hear how far it is."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ray_model_serving.store.report import FetchProgress

OnProgress = Callable[[FetchProgress], None]


@dataclass
class Fetch:
    """One call of ``ensure``: its deadline, its clock and who wants to hear of it."""

    deadline: float
    on_progress: OnProgress | None
    started: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str, total_bytes: int = 0) -> Generator[None]:
        self.tell(name, 0, total_bytes)
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start

    def tell(self, phase: str, done_bytes: int, total_bytes: int) -> None:
        if self.on_progress:
            self.on_progress(FetchProgress(phase=phase, bytes_done=done_bytes, bytes_total=total_bytes))

    def finished(self) -> dict[str, float]:
        """The seconds of each phase, and of all of it until now as ``total``."""
        return {**self.seconds, "total": time.monotonic() - self.started}
