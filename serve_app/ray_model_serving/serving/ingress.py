"""The front of an application with several models: passes a request to the model with the longest matching route."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import ray.serve.metrics
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from ray_model_serving.contract.deployments import INGRESS_NAME
from ray_model_serving.contract.memory import ingress_requests
from ray_model_serving.contract.settings import ModelSettings
from ray_model_serving.serving import serve_request
from ray_model_serving.serving.admission import Admission, FullError
from ray_model_serving.serving.desk import RequestDesk
from ray_model_serving.serving.exchange import RefusedError, Response, busy, is_under, read_body, retry_after
from ray_model_serving.serving.logs import Fields
from ray_model_serving.serving.replica import to_http, tracing_of, where
from ray_model_serving.serving.requests import current_request
from ray_model_serving.serving.tracing import carrier_of
from ray_model_serving.telemetry import Telemetry

# The model's own clock starts later and has the better answer; this one covers the time in the queue before it.
_DEADLINE_MARGIN_S = 1.0
_RETRY_WHEN_LOST_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model and the handle of its deployment."""

    model: ModelSettings
    handle: DeploymentHandle
    admission: Admission
    """So that a model that is slow, or loads, takes no place of another."""


class Ingress:
    """Keeps the same limits as the model's own replica, so that nothing unbounded reaches this process either."""

    def __init__(
        self, models: Sequence[ModelSettings], *handles: DeploymentHandle, trace_endpoint: str | None = None
    ) -> None:
        pairs = zip(models, handles, strict=True)
        targets = [
            Target(model=model, handle=handle, admission=Admission(ongoing=ingress_requests(model), queued=0))
            for model, handle in pairs
        ]
        self._targets = sorted(targets, key=lambda target: len(target.model.route), reverse=True)
        self._tracing = tracing_of(trace_endpoint, INGRESS_NAME)
        self._desk = RequestDesk(Telemetry(ray.serve.metrics), tracing=self._tracing)
        self._deadline_s = max(model.limits.request_deadline_s for model in models)
        Fields(where()).install()

    async def __call__(self, request: Request) -> HttpResponse:
        path: str = request.scope["path"]
        target = next((target for target in self._targets if is_under(path, target.model.route)), None)
        carrier = carrier_of(request.headers) if self._tracing and request.method == "POST" else None
        request_id, replaced = serve_request.request_id()
        response = await self._desk.follow(
            self._answer(request, path, target),
            request_id=request_id,
            replaced=replaced,
            deadline_s=target.model.limits.request_deadline_s if target else self._deadline_s,
            carrier=carrier,
        )
        return to_http(response)

    def __del__(self) -> None:
        tracing = self.__dict__.pop("_tracing", None)
        if tracing:
            tracing.close()

    async def _answer(self, request: Request, path: str, target: Target | None) -> Response:
        try:
            return await self._pass_on(request, path, target)
        except RefusedError as refusal:
            return self._desk.refuse(refusal, target.model.name if target else None)

    async def _pass_on(self, request: Request, path: str, target: Target | None) -> Response:
        if target is None:
            routes = ", ".join(target.model.route for target in self._targets)
            raise RefusedError(404, "not_found", f"nothing answers {path!r}", hint=f"routes: {routes}")
        limits = target.model.limits
        clock = asyncio.timeout(limits.request_deadline_s + _DEADLINE_MARGIN_S)
        try:
            async with clock:
                if request.method != "POST":  # a status takes no place: it has to answer when all are taken
                    return await target.handle.forward.remote(request.method, path, b"")
                async with target.admission.place():
                    body = await read_body(request.stream(), limits.max_body_bytes)
                    record = current_request()
                    return await target.handle.forward.remote(
                        request.method, path, body, record.carrier if record else None
                    )
        except RefusedError:
            raise
        except (BackPressureError, FullError) as error:
            raise busy(target.model) from error
        except DeploymentUnavailableError as error:
            raise _unavailable(target.model) from error
        except Exception as error:
            if clock.expired():
                raise _late(target.model) from error
            raise _unavailable(target.model) from error


def _unavailable(model: ModelSettings) -> RefusedError:
    headers = retry_after(_RETRY_WHEN_LOST_S)
    message = f"model {model.name} has no replica that could answer"
    return RefusedError(503, "unavailable", message, permanent=False, reason="unavailable", headers=headers)


def _late(model: ModelSettings) -> RefusedError:
    message = f"model {model.name} did not answer within request_deadline_s {model.limits.request_deadline_s:g}"
    return RefusedError(504, "deadline", message, permanent=False, reason="deadline")
