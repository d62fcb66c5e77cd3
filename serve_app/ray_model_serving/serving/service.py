"""One model behind its gate and its limits, without Ray: a request in, a response out."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from ray_model_serving.contract.settings import ModelSettings
from ray_model_serving.serving import refusals
from ray_model_serving.serving.costs import costs_of
from ray_model_serving.serving.desk import RequestDesk
from ray_model_serving.serving.engine import Engine, Worker
from ray_model_serving.serving.exchange import (
    RefusedError,
    Response,
    is_under,
    json_response,
    parse_inputs,
    read_body,
    subpath,
)
from ray_model_serving.serving.gate import LoadFailedError, State
from ray_model_serving.serving.guard import MemoryGuard
from ray_model_serving.serving.halving import BatchMemoryError
from ray_model_serving.serving.intake import Intake
from ray_model_serving.serving.requests import begin_stage
from ray_model_serving.serving.variants import NewWorker, Variants
from ray_model_serving.telemetry import Telemetry


def cost_one(value: Any) -> int:
    """The cost of an input of a class that counts none."""
    del value
    return 1


class ModelService:
    """Answers ``POST <route>``, ``GET <route>/status`` and ``GET <route>/ready``; belongs to one event loop.

    ``problem_with`` and ``cost`` are the model class's. ``guard`` is shared by all models of a process; None for none.
    """

    def __init__(
        self,
        model: ModelSettings,
        worker: Worker,
        *,
        load_deadline_s: float,
        executor: Executor,
        telemetry: Telemetry,
        problem_with: Callable[[Any], str | None],
        identity: dict[str, object],
        cost: Callable[[Any], int] = cost_one,
        guard: MemoryGuard | None = None,
        desk: RequestDesk | None = None,
        new_worker: NewWorker | None = None,
    ) -> None:
        self._model = model
        self._telemetry = telemetry
        self._desk = desk or RequestDesk(telemetry)
        self._problem_with = problem_with
        self._identity = identity
        self._cost = cost
        self._guard = guard
        self._engine = Engine(
            model,
            worker,
            executor=executor,
            load_deadline_s=load_deadline_s,
            on_change=self._count,
            on_loaded=telemetry.loaded,
        )
        self._variants = None
        if model.variants and new_worker:
            self._variants = Variants(
                model, new_worker, load_deadline_s=load_deadline_s, on_change=self._count, on_loaded=telemetry.loaded
            )
        self._intake = Intake(model, guard)
        self._count()

    async def open(self) -> None:
        """Load and warm up, with retries until the load's deadline. Raises :class:`LoadFailedError`."""
        await self._engine.open()

    def drain(self, why: str) -> None:
        """Take no new work from now on; what is under way goes on."""
        self._intake.ending = self._intake.ending or why

    def close(self) -> None:
        """Drain, fail what no pass has begun with, and let go of the files once their threads are done; never waits."""
        why = "it is being shut down"
        self.drain(why)
        self._engine.close(refusals.draining(self._model.name, why))
        if self._variants:
            self._variants.close(refusals.draining(self._model.name, why))

    @property
    def ongoing(self) -> int:
        """Requests that are worked on."""
        return self._intake.ongoing

    @property
    def fault(self) -> str | None:
        """Why only a new process can help, or None. Takes no lock and never waits."""
        return self._engine.fault or (self._variants.fault if self._variants else None)

    def why_not_ready(self) -> str | None:
        """Why a request would not be answered now, or None. Takes no lock and never waits."""
        if self._intake.ending:
            return f"draining: {self._intake.ending}"
        return self.fault or self._engine.why_not_ready()

    def status(self) -> dict[str, object]:
        """What this replica is doing. Takes no lock and never waits."""
        why = self.why_not_ready()
        return {
            "model": self._model.name,
            **self._identity,
            "state": self._engine.state.value,
            "ready": why is None,
            "why_not_ready": why,
            "draining": self._intake.ending is not None,
            **self._engine.status(),
            "limits": asdict(self._model.limits),
            "ongoing": self._intake.ongoing,
            "memory_guard": self._guard.to_json() if self._guard else {"state": "off", "why": "not asked for"},
            "variants": self._variants.status() if self._variants else None,
        }

    def ready(self) -> Response:
        """200 when loaded and warm, else 503 that says what is missing; both are short enough for a probe."""
        why = self.why_not_ready()
        return _ready({"state": self._engine.state.value, "phase": self._engine.phase, "why_not_ready": why})

    async def answer(self, method: str, path: str, body: AsyncIterator[bytes]) -> Response:
        """Never raises for a request that is refused or a model that fails; cancelled when the client is gone."""
        try:
            if not is_under(path, self._model.route):
                raise refusals.not_found(path, self._model.route)
            first, _, below = subpath(path, self._model.route).partition("/")
            if self._variants and first in self._variants.names:
                return await self._answer_for(first, below, method, path, body)
            return await self._answer_for(None, first if not below else f"{first}/{below}", method, path, body)
        except RefusedError as refusal:
            return self._desk.refuse(refusal, self._model.name)

    async def _answer_for(
        self, variant: str | None, below: str, method: str, path: str, body: AsyncIterator[bytes]
    ) -> Response:
        reading = method in ("GET", "HEAD")
        if below == "status" and reading:
            return json_response(200, self._status_of(variant))
        if below == "ready" and reading:
            return self.ready() if variant is None else _ready(self._status_of(variant))
        if below:
            raise refusals.not_found(path, self._model.route, self._variants.names if self._variants else ())
        if method != "POST":
            raise refusals.wrong_method(method)
        return await self._predict(variant, body)

    def _status_of(self, variant: str | None) -> dict[str, object]:
        if variant is None or self._variants is None:
            return self.status()
        found = self._variants.status_of(variant)
        if why := self._intake.ending and f"draining: {self._intake.ending}":
            found |= {"ready": False, "why_not_ready": why}
        return {"model": self._model.name, "variant": variant, **self._identity, **found}

    @asynccontextmanager
    async def _held(self, variant: str | None) -> AsyncGenerator[Engine]:
        if variant is None or self._variants is None:
            yield self._engine
            return
        async with self._variants.hold(variant) as engine:
            yield engine

    async def _predict(self, variant: str | None, body: AsyncIterator[bytes]) -> Response:
        limits = self._model.limits
        late = refusals.late_place
        clock = asyncio.timeout(limits.request_deadline_s)
        engine: Engine | None = None
        try:
            begin_stage("queue")
            async with clock, self._intake.place():
                late = refusals.late_body
                begin_stage("body")
                content = await read_body(body, limits.max_body_bytes)
                inputs = parse_inputs(content, limits, self._problem_with)
                costs = costs_of(inputs, limits, self._cost)
                late = refusals.still_loading
                begin_stage("load")
                async with self._held(variant) as engine:
                    await engine.opened()
                    late = refusals.late_prediction
                    begin_stage("batch_wait")
                    outputs = await engine.predict(inputs, costs)
        except LoadFailedError as failure:
            raise refusals.load_failed(failure) from failure
        except RefusedError:
            raise
        except BatchMemoryError as error:
            raise refusals.out_of_memory(self._model, str(error)) from error
        except Exception as error:
            if clock.expired():
                raise late(limits) from error
            if engine:
                engine.note(error)
                # The device is the process's: a variant may be gone by now, and the others fail as well.
                self._engine.note(error)
            raise refusals.model_failed(error) from error
        try:
            return json_response(200, {"outputs": outputs})
        except (TypeError, ValueError) as error:
            raise refusals.model_failed(error) from error

    def _engines(self) -> list[Engine]:
        return [self._engine, *(self._variants.engines.values() if self._variants else ())]

    def _count(self) -> None:
        loading = sum(engine.state in (State.LOADING, State.WARMING) for engine in self._engines())
        self._telemetry.state(self._engine.state.value, loading)


def _ready(found: dict[str, object]) -> Response:
    why = found["why_not_ready"]
    document = {"ready": why is None, "state": found["state"], "phase": found["phase"], "why_not_ready": why}
    return json_response(200 if why is None else 503, document)
