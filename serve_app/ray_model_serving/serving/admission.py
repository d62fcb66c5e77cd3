"""How many requests are worked on at once and how many wait; whoever comes on top is refused at once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class FullError(Exception):
    """There is no room for another request."""


class Admission:
    """``ongoing`` places and ``queued`` that wait for one, in order; belongs to one event loop.

    Serve could keep these bounds itself, but then a replica that is busy could not be asked for its status.
    """

    def __init__(self, *, ongoing: int, queued: int) -> None:
        self._places = asyncio.Semaphore(ongoing)
        self._queued = queued
        self._waiting = 0

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        """Hold a place, waiting for one if need be. Raises :class:`FullError` where nobody may wait any more."""
        if self._places.locked() and self._waiting >= self._queued:
            raise FullError
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._places.release()
