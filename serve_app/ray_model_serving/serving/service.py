"""One model behind its gate and its limits, without Ray: a request in, a response out."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Protocol

from ray_model_serving.contract.settings import ModelSettings
from ray_model_serving.serving import refusals
from ray_model_serving.serving.batching import Batcher
from ray_model_serving.serving.costs import costs_of
from ray_model_serving.serving.desk import RequestDesk
from ray_model_serving.serving.exchange import (
    RefusedError,
    Response,
    is_under,
    json_response,
    parse_inputs,
    read_body,
    subpath,
)
from ray_model_serving.serving.gate import Gate, LoadFailedError, State
from ray_model_serving.serving.guard import MemoryGuard
from ray_model_serving.serving.halving import BatchMemoryError, is_device_fault
from ray_model_serving.serving.intake import Intake
from ray_model_serving.serving.requests import begin_stage
from ray_model_serving.telemetry import Telemetry

log = logging.getLogger("ray.serve")

# A forward pass longer than a request's deadline answers nobody; this much over it, it counts as hung.
HUNG_MARGIN_S = 10.0


class Worker(Protocol):
    """What the service needs of :class:`~ray_model_serving.serving.worker.ModelWorker`."""

    progress: Any
    report: dict[str, Any] | None

    @property
    def phase(self) -> str | None: ...
    @property
    def snapshot_id(self) -> str | None: ...
    def load(self) -> None: ...
    def warm_up(self) -> None: ...
    def predict(self, inputs: list[Any]) -> Any: ...
    def free(self) -> None: ...
    def close(self) -> None: ...


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
    ) -> None:
        self._model = model
        self._worker = worker
        self._load_deadline_s = load_deadline_s
        self._executor = executor
        self._telemetry = telemetry
        self._desk = desk or RequestDesk(telemetry)
        self._problem_with = problem_with
        self._identity = identity
        self._cost = cost
        self._guard = guard
        self._device_fault: str | None = None
        self._gate = Gate(
            worker.load,
            self._warm_up,
            executor=executor,
            deadline_s=load_deadline_s,
            on_change=self._changed,
        )
        telemetry.state(self._gate.state.value)
        self._intake = Intake(model, guard)
        self._batcher = Batcher(
            worker.predict,
            executor=executor,
            max_batch_size=model.limits.max_batch_size,
            max_batch_cost=model.limits.max_batch_cost,
            batch_wait_s=model.limits.batch_wait_s,
            free=worker.free,
        )

    async def open(self) -> None:
        """Load and warm up, with retries until the load's deadline. Raises :class:`LoadFailedError`."""
        await self._gate.opened_within(self._load_deadline_s)

    def drain(self, why: str) -> None:
        """Take no new work from now on; what is under way goes on."""
        self._intake.ending = self._intake.ending or why

    def close(self) -> None:
        """Drain, fail what no pass has begun with, and let go of the files once the thread is done; never waits.

        A load under way can't be stopped; what it leaves open is closed right after it.
        """
        self.drain("it is being shut down")
        self._batcher.close(refusals.draining(self._model.name, "it is being shut down"))
        with suppress(RuntimeError):  # an executor that was shut down before
            self._executor.submit(self._worker.close)

    @property
    def ongoing(self) -> int:
        """Requests that are worked on."""
        return self._intake.ongoing

    @property
    def fault(self) -> str | None:
        """Why only a new process can help, or None. Takes no lock and never waits."""
        return self._gate.fault or self._device_fault or self._hung()

    def why_not_ready(self) -> str | None:
        """Why a request would not be answered now, or None. Takes no lock and never waits."""
        if self._intake.ending:
            return f"draining: {self._intake.ending}"
        if self.fault:
            return self.fault
        if self._gate.state is State.READY:
            return None
        if self._gate.failure:
            return self._gate.failure.message
        phase = self._worker.phase
        return f"the model is {self._gate.state.value}" + (f", phase {phase}" if phase else "")

    def status(self) -> dict[str, object]:
        """What this replica is doing. Takes no lock and never waits."""
        worker, failure, why = self._worker, self._gate.failure, self.why_not_ready()
        return {
            "model": self._model.name,
            **self._identity,
            "state": self._gate.state.value,
            "ready": why is None,
            "why_not_ready": why,
            "draining": self._intake.ending is not None,
            "phase": worker.phase,
            "progress": asdict(worker.progress) if worker.progress else None,
            "attempts": self._gate.attempts,
            "snapshot_id": worker.snapshot_id,
            "load": worker.report,
            "limits": asdict(self._model.limits),
            "ongoing": self._intake.ongoing,
            "memory_guard": self._guard.to_json() if self._guard else {"state": "off", "why": "not asked for"},
            **(failure.to_json() if failure else {"error": None}),
        }

    def ready(self) -> Response:
        """200 when loaded and warm, else 503 that says what is missing; both are short enough for a probe."""
        why = self.why_not_ready()
        document = {
            "ready": why is None,
            "state": self._gate.state.value,
            "phase": self._worker.phase,
            "why_not_ready": why,
        }
        return json_response(200 if why is None else 503, document)

    async def answer(self, method: str, path: str, body: AsyncIterator[bytes]) -> Response:
        """Never raises for a request that is refused or a model that fails; cancelled when the client is gone."""
        try:
            if not is_under(path, self._model.route):
                raise refusals.not_found(path, self._model.route)
            below, reading = subpath(path, self._model.route), method in ("GET", "HEAD")
            if below == "status" and reading:
                return json_response(200, self.status())
            if below == "ready" and reading:
                return self.ready()
            if below:
                raise refusals.not_found(path, self._model.route)
            if method != "POST":
                raise refusals.wrong_method(method)
            return await self._predict(body)
        except RefusedError as refusal:
            return self._desk.refuse(refusal, self._model.name)

    async def _predict(self, body: AsyncIterator[bytes]) -> Response:
        limits = self._model.limits
        late = refusals.late_place
        clock = asyncio.timeout(limits.request_deadline_s)
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
                await self._gate.opened()
                late = refusals.late_prediction
                begin_stage("batch_wait")
                outputs = await self._batcher.predict(inputs, costs)
        except LoadFailedError as failure:
            raise refusals.load_failed(failure) from failure
        except RefusedError:
            raise
        except BatchMemoryError as error:
            raise refusals.out_of_memory(self._model, str(error)) from error
        except Exception as error:
            if clock.expired():
                raise late(limits) from error
            raise self._model_failed(error) from error
        try:
            return json_response(200, {"outputs": outputs})
        except (TypeError, ValueError) as error:
            raise self._model_failed(error) from error

    def _changed(self, state: State) -> None:
        self._telemetry.state(state.value)
        failure = self._gate.failure
        if failure:
            extra = {"event": "load_failed", "permanent": failure.permanent, "attempts": self._gate.attempts}
            log.error("model %s: %s", self._model.name, failure.message, extra=extra)

    def _warm_up(self) -> None:
        self._worker.warm_up()
        if self._worker.report:
            self._telemetry.loaded(self._worker.report)

    def _hung(self) -> str | None:
        taken_s, most_s = self._batcher.pass_s, self._model.limits.request_deadline_s + HUNG_MARGIN_S
        if taken_s <= most_s:
            return None
        return f"a forward pass has taken {taken_s:.0f} s, over request_deadline_s and {HUNG_MARGIN_S:g} s: it hangs"

    def _model_failed(self, error: Exception) -> RefusedError:
        if is_device_fault(error):
            self._device_fault = f"the device failed: {error}"
        message = f"the model failed: {type(error).__name__}: {error}"
        return RefusedError(500, "model_failed", message, hint="see the replica's log", reason="model_failed")
