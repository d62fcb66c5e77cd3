"""One model behind its gate and its limits, without Ray: a request in, a response out."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import asdict
from typing import Any, Protocol

from ray_model_serving.contract.settings import ModelSettings
from ray_model_serving.serving.admission import Admission, FullError
from ray_model_serving.serving.batching import Batcher
from ray_model_serving.serving.exchange import (
    RefusedError,
    Response,
    busy,
    is_under,
    json_response,
    parse_inputs,
    read_body,
    retry_after,
    subpath,
)
from ray_model_serving.serving.gate import Gate, LoadFailedError
from ray_model_serving.telemetry import Telemetry

log = logging.getLogger("ray.serve")

# A caller that comes back waits for the load again, so there is nothing to gain from a longer pause.
_RETRY_WHILE_LOADING_S = 1.0


class Worker(Protocol):
    """What the service needs of :class:`~ray_model_serving.serving.worker.ModelWorker`."""

    phase: str | None
    progress: Any
    report: dict[str, Any] | None

    @property
    def snapshot_id(self) -> str | None: ...
    def load(self) -> None: ...
    def warm_up(self) -> None: ...
    def predict(self, inputs: list[Any]) -> Any: ...


class ModelService:
    """Answers ``POST <route>`` and ``GET <route>/status``; belongs to one event loop."""

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
    ) -> None:
        self._model = model
        self._worker = worker
        self._load_deadline_s = load_deadline_s
        self._telemetry = telemetry
        self._problem_with = problem_with
        self._identity = identity
        self._device_fault: str | None = None
        self._gate = Gate(
            worker.load,
            self._warm_up,
            executor=executor,
            deadline_s=load_deadline_s,
            on_change=lambda state: telemetry.state(state.value),
        )
        telemetry.state(self._gate.state.value)
        self._admission = Admission(ongoing=model.limits.max_ongoing_requests, queued=model.limits.max_queued_requests)
        self._batcher = Batcher(
            worker.predict,
            executor=executor,
            max_batch_size=model.limits.max_batch_size,
            batch_wait_s=model.limits.batch_wait_s,
        )

    async def open(self) -> None:
        """Load and warm up, with retries until the load's deadline. Raises :class:`LoadFailedError`."""
        await self._gate.opened_within(self._load_deadline_s)

    @property
    def fault(self) -> str | None:
        """Why only a new process can help, or None. Takes no lock and never waits."""
        return self._gate.fault or self._device_fault

    def status(self) -> dict[str, object]:
        """What this replica is doing. Takes no lock and never waits."""
        worker, failure = self._worker, self._gate.failure
        return {
            "model": self._model.name,
            **self._identity,
            "state": self._gate.state.value,
            "phase": worker.phase,
            "progress": asdict(worker.progress) if worker.progress else None,
            "attempts": self._gate.attempts,
            "snapshot_id": worker.snapshot_id,
            "load": worker.report,
            "limits": asdict(self._model.limits),
            **(failure.to_json() if failure else {"error": None}),
        }

    async def answer(self, method: str, path: str, body: AsyncIterator[bytes]) -> Response:
        """Never raises for a request that is refused or a model that fails; cancelled when the client is gone."""
        try:
            if not is_under(path, self._model.route):
                raise _not_found(path, self._model.route)
            if subpath(path, self._model.route) == "status" and method in ("GET", "HEAD"):
                return json_response(200, self.status())
            if subpath(path, self._model.route):
                raise _not_found(path, self._model.route)
            if method != "POST":
                raise _wrong_method(method)
            return await self._predict(body)
        except RefusedError as refusal:
            if refusal.reason:
                self._telemetry.rejected(refusal.reason)
            return refusal.to_response()

    async def _predict(self, body: AsyncIterator[bytes]) -> Response:
        limits = self._model.limits
        late = _late_place(limits.request_deadline_s)
        clock = asyncio.timeout(limits.request_deadline_s)
        try:
            async with clock, self._admission.place():
                late = _late_body(limits.request_deadline_s)
                content = await read_body(body, limits.max_body_bytes)
                inputs = parse_inputs(content, limits, self._problem_with)
                late = _still_loading(limits.request_deadline_s)
                await self._gate.opened()
                late = _late_prediction(limits.request_deadline_s)
                outputs = await self._batcher.predict(inputs)
        except LoadFailedError as failure:
            raise _load_failed(failure) from failure
        except RefusedError:
            raise
        except FullError as error:
            raise busy(self._model) from error
        except Exception as error:
            if clock.expired():
                raise late from error
            raise self._model_failed(error) from error
        try:
            return json_response(200, {"outputs": outputs})
        except (TypeError, ValueError) as error:
            raise self._model_failed(error) from error

    def _warm_up(self) -> None:
        self._worker.warm_up()
        if self._worker.report:
            self._telemetry.loaded(self._worker.report)

    def _model_failed(self, error: Exception) -> RefusedError:
        log.error("model %s failed on a request", self._model.name, exc_info=error)
        if _is_device_fault(error):
            self._device_fault = f"the device failed: {error}"
        message = f"the model failed: {type(error).__name__}: {error}"
        return RefusedError(500, "model_failed", message, hint="see the replica's log", reason=None)


def _is_device_fault(error: BaseException) -> bool:
    # torch.AcceleratorError, by name since torch is not imported here: after one, a CUDA context fails every call.
    return any(kind.__name__ == "AcceleratorError" for kind in type(error).__mro__)


def _not_found(path: str, route: str) -> RefusedError:
    hint = f"POST {route} predicts, GET {route.rstrip('/')}/status reports"
    return RefusedError(404, "not_found", f"nothing answers {path!r}", hint=hint)


def _wrong_method(method: str) -> RefusedError:
    hint = 'POST {"inputs": [...]}'
    return RefusedError(405, "wrong_method", f"got {method}", hint=hint, headers={"allow": "POST"})


def _late_place(deadline_s: float) -> RefusedError:
    message = f"no place was free within request_deadline_s {deadline_s:g}"
    headers = retry_after(_RETRY_WHILE_LOADING_S)
    return RefusedError(503, "busy", message, permanent=False, reason="deadline", headers=headers)


def _late_body(deadline_s: float) -> RefusedError:
    message = f"the body did not arrive within request_deadline_s {deadline_s:g}"
    return RefusedError(408, "deadline", message, permanent=False, reason="deadline")


def _still_loading(deadline_s: float) -> RefusedError:
    return RefusedError(
        503,
        "loading",
        f"the model was not loaded within request_deadline_s {deadline_s:g}",
        hint="the load goes on: send the request again",
        permanent=False,
        reason="deadline",
        headers=retry_after(_RETRY_WHILE_LOADING_S),
    )


def _late_prediction(deadline_s: float) -> RefusedError:
    message = f"the model did not answer within request_deadline_s {deadline_s:g}"
    return RefusedError(504, "deadline", message, permanent=False, reason="deadline")


def _load_failed(failure: LoadFailedError) -> RefusedError:
    headers = {} if failure.retry_after_s is None else retry_after(failure.retry_after_s)
    return RefusedError(
        503,
        failure.kind,
        failure.message,
        hint=failure.hint,
        permanent=failure.permanent,
        reason="load_failed",
        headers=headers,
    )
