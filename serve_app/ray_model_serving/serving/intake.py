"""Who may be worked on: within the limits, within the memory, and not once the replica is ending."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from ray_model_serving.contract.settings import ModelSettings
from ray_model_serving.serving.admission import Admission, FullError
from ray_model_serving.serving.exchange import busy
from ray_model_serving.serving.guard import MemoryGuard
from ray_model_serving.serving.refusals import draining, memory_short


class Intake:
    """The one door to a model; belongs to one event loop."""

    def __init__(self, model: ModelSettings, guard: MemoryGuard | None) -> None:
        limits = model.limits
        self._model = model
        self._guard = guard
        self._admission = Admission(ongoing=limits.max_ongoing_requests, queued=limits.max_queued_requests)
        self._ongoing = 0
        self.ending: str | None = None
        """Why nothing new is taken, or None."""

    @property
    def ongoing(self) -> int:
        """Requests that hold a place."""
        return self._ongoing

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        """Hold a place, waiting for one if need be. Raises :class:`RefusedError`: draining, memory or busy."""
        self._check()
        try:
            place = self._admission.place()
            await place.__aenter__()
        except FullError as error:
            raise busy(self._model) from error
        self._ongoing += 1
        try:
            self._check()  # both may have changed while it waited
            if self._guard is None:
                yield
            else:
                with self._guard.promised(self._model.request_bytes):
                    yield
        finally:
            self._ongoing -= 1
            await place.__aexit__(None, None, None)

    def _check(self) -> None:
        if self.ending:
            raise draining(self._model.name, self.ending)
        problem = self._guard.problem(self._model.request_bytes) if self._guard else None
        if problem:
            raise memory_short(self._model, problem)
