"""The phases of a load: each is told in the log when it begins, and all are kept for the trace."""

import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

Span = tuple[str, int, int]
"""A phase with its begin and end, in nanoseconds since the epoch."""

log = logging.getLogger("ray.serve")


class LoadPhases:
    """Entered by the thread that loads; anybody reads ``current``."""

    def __init__(self, name: str, on_end: Callable[[list[Span], str | None], None] | None = None) -> None:
        """``on_end`` gets the phases of a load that is over, and of one that failed why."""
        self._name = name
        self._on_end = on_end
        self._begun: list[tuple[str, int]] = []
        self.current: str | None = None
        """The phase that a load is in, or None."""

    def enter(self, phase: str | None) -> None:
        """Begin a phase, or with None end the load. That it is already in is fine."""
        if phase == self.current and self._begun:
            return
        now_ns, before = time.time_ns(), self.current
        extra: dict[str, object] = {"event": "load_phase", "phase": phase, "model": self._name}
        if before and self._begun:
            extra |= {"phase_before": before, "seconds_before": round((now_ns - self._begun[-1][1]) / 1e9, 4)}
        self.current = phase
        if phase is None:
            self._end(None)
            return
        self._begun.append((phase, now_ns))
        log.info("model %s: phase %s begins", self._name, phase, extra=extra)

    @contextmanager
    def failing(self) -> Generator[None]:
        """What is raised inside ends the load; ``current`` goes on saying where it was."""
        try:
            yield
        except BaseException as error:
            self._end(f"{type(error).__name__}: {error}")
            raise

    def _end(self, error: str | None) -> None:
        begun, self._begun = self._begun, []
        ends = [*(start for _, start in begun[1:]), time.time_ns()]
        if self._on_end and begun:
            self._on_end([(phase, start, end) for (phase, start), end in zip(begun, ends, strict=True)], error)
