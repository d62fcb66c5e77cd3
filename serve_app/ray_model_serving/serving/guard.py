"""Refuses new work while memory is short, before Ray's memory monitor or the kernel kills a process."""

import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from ray_model_serving.contract.memory import RAY_KILL_THRESHOLD
from ray_model_serving.host_memory import MemoryLimit

log = logging.getLogger("ray.serve")

# Closed at the fraction, open again this much of the limit below it: no flicker around one value.
REOPEN_MARGIN = 0.05
# One reading takes about 50 microseconds; this keeps it out of what a request costs.
READ_EVERY_S = 0.05


def is_short(limit: MemoryLimit, *, fraction: float, was_short: bool) -> bool:
    """Whether new work has to wait, given what was decided before."""
    threshold = fraction - REOPEN_MARGIN if was_short else fraction
    return taken_bytes(limit) >= threshold * limit.limit_bytes


def taken_bytes(limit: MemoryLimit) -> int:
    """The larger of what the kernel can't drop and what Ray's monitor counts."""
    return max(limit.used_bytes, limit.charged_bytes)


def crossed_bytes(limit: MemoryLimit, *, idle_bytes: int, promised_bytes: int, need_bytes: int) -> int | None:
    """The total that one more request leads to, where Ray would kill at it; else None.

    What requests under way were promised may not show yet, so they count with their whole need over the idle process.
    """
    total = max(taken_bytes(limit), idle_bytes + promised_bytes) + need_bytes
    return total if total >= RAY_KILL_THRESHOLD * limit.limit_bytes else None


class MemoryGuard:
    """One a process; belongs to one event loop. ``read`` gives the tightest limit, or None where there is none.

    Where no limit can be read it lets everything in, and says so once in the log and in :meth:`to_json`.
    """

    def __init__(
        self,
        read: Callable[[], MemoryLimit | None],
        *,
        fraction: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._fraction = fraction
        self._clock = clock
        self._read_at: float | None = None
        self._limit: MemoryLimit | None = None
        self._short = False
        self._idle_bytes = 0
        self._promised_bytes = 0
        self._said_that_blind = False

    def problem(self, need_bytes: int) -> str | None:
        """Why a request that may take ``need_bytes`` must not begin now, or None."""
        limit = self._current()
        if limit is None:
            return None
        if self._short:
            return (
                f"{taken_bytes(limit)} of {limit.limit_bytes} bytes of memory are taken, new work is refused from "
                f"memory_guard_fraction {self._fraction:g} on"
            )
        total = crossed_bytes(
            limit, idle_bytes=self._idle_bytes, promised_bytes=self._promised_bytes, need_bytes=need_bytes
        )
        if total is None:
            return None
        return (
            f"with the {need_bytes} bytes that this request may take, {total} of {limit.limit_bytes} bytes of memory "
            f"would be taken; processes are killed from {RAY_KILL_THRESHOLD:g} on"
        )

    @contextmanager
    def promised(self, need_bytes: int) -> Generator[None]:
        """Count a request's need for as long as it is worked on."""
        self._promised_bytes += need_bytes
        try:
            yield
        finally:
            self._promised_bytes -= need_bytes

    def to_json(self) -> dict[str, object]:
        """For the replica's status; bytes."""
        limit = self._current()
        if limit is None:
            return {"state": "off", "why": "no memory limit can be read"}
        return {
            "state": "closed" if self._short else "open",
            "taken_bytes": taken_bytes(limit),
            "limit_bytes": limit.limit_bytes,
            "fraction": self._fraction,
        }

    def _current(self) -> MemoryLimit | None:
        now = self._clock()
        if self._read_at is not None and now - self._read_at < READ_EVERY_S:
            return self._limit
        self._read_at, self._limit = now, self._read()
        if self._limit is None:
            self._short = False
            if not self._said_that_blind:
                self._said_that_blind = True
                log.warning("no memory limit can be read: the memory guard is off")
            return None
        taken = taken_bytes(self._limit)
        self._idle_bytes = min(self._idle_bytes, taken) if self._promised_bytes else taken
        was_short, self._short = self._short, is_short(self._limit, fraction=self._fraction, was_short=self._short)
        if self._short != was_short:
            word = "refuses" if self._short else "takes"
            log.warning("the memory guard %s new work: %d of %d bytes", word, taken, self._limit.limit_bytes)
        return self._limit
