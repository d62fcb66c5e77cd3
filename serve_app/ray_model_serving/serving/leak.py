"""Finds a replica whose memory only grows, and has Serve replace it: one at a time, and before anything is killed."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from ray_model_serving.contract.memory import MIB
from ray_model_serving.host_memory import Resident

log = logging.getLogger("ray.serve")

# Over its reservation by this part and these bytes a process counts as too large: allocators round up and keep some.
MARGIN_FRACTION = 0.1
MARGIN_BYTES = 64 * MIB
SAMPLE_EVERY_S = 10.0
# Five minutes of samples in a row while it works; one minute while idle, when nothing more will be given back.
SAMPLES = 30
IDLE_SAMPLES = 6


def bound_bytes(reserved_bytes: int) -> int:
    """Anonymous memory over which a process that reserved ``reserved_bytes`` counts as too large."""
    return int(reserved_bytes * (1 + MARGIN_FRACTION)) + MARGIN_BYTES


def may_leave(replicas: Mapping[str, int], *, min_replicas: int) -> bool:
    """Whether one replica may go, given how many Serve has in each state (``RUNNING`` and others).

    Not while another is still starting or stopping, and the last one only where one alone is what was asked for.
    """
    total, running = sum(replicas.values()), replicas.get("RUNNING", 0)
    return running == total and (running > 1 or min_replicas <= 1)


class LeakWatch:
    """Counts samples in a row over the bound."""

    def __init__(self, reserved_bytes: int) -> None:
        self.bound_bytes = bound_bytes(reserved_bytes)
        self._over = 0
        self._idle_over = 0

    def leaks(self, anon_bytes: int, *, idle: bool) -> bool:
        """Add a sample; whether the process has been too large for long enough."""
        over = anon_bytes > self.bound_bytes
        self._over = self._over + 1 if over else 0
        self._idle_over = self._idle_over + 1 if over and idle else 0
        return self._over >= SAMPLES or self._idle_over >= IDLE_SAMPLES


class Turn(Protocol):
    """Whose turn it is to leave, among the replicas of a deployment."""

    def take(self) -> bool:
        """Whether this replica may leave now. May block; called in a thread."""
        ...


class LeakMonitor:
    """Samples this process while :meth:`run` is awaited; ``fault`` is set once it leaks and it is its turn.

    Serve asks for the health, takes an unhealthy replica out of its routing, lets it finish what runs within the grace
    period and starts another (Ray 2.60). Until then requests are answered as before, so that none is lost.
    """

    def __init__(
        self,
        reserved_bytes: int,
        *,
        read: Callable[[], Resident],
        ongoing: Callable[[], int],
        turn: Turn,
        sample_every_s: float = SAMPLE_EVERY_S,
    ) -> None:
        self._watch = LeakWatch(reserved_bytes)
        self._read = read
        self._ongoing = ongoing
        self._turn = turn
        self._sample_every_s = sample_every_s
        self.fault: str | None = None
        """Why this replica has to be replaced, or None."""

    async def run(self) -> None:
        """Ends when the fault is set."""
        while self.fault is None:
            await asyncio.sleep(self._sample_every_s)
            anon_bytes = self._read().anon_bytes
            if self._watch.leaks(anon_bytes, idle=self._ongoing() == 0) and await self._is_its_turn():
                self.fault = (
                    f"a leak: the process has {anon_bytes} bytes of anonymous memory, over the "
                    f"{self._watch.bound_bytes} that its reservation allows"
                )
                log.warning("this replica asks to be replaced: %s", self.fault)

    async def _is_its_turn(self) -> bool:
        try:
            return await asyncio.to_thread(self._turn.take)
        except Exception:
            # Ray's control plane may be away for a while; the memory is still too large at the next sample.
            log.warning("could not ask whose turn it is to be replaced", exc_info=True)
            return False
