"""The deployment of one model: Ray Serve's side of :class:`ModelService`."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import ray
import ray.serve
import ray.serve.metrics
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from ray_model_serving.contract.settings import LoadMode, ModelSettings, ServingSettings
from ray_model_serving.host_memory import LimitReader
from ray_model_serving.model import ServedModel
from ray_model_serving.serving import serve_request
from ray_model_serving.serving.desk import RequestDesk
from ray_model_serving.serving.exchange import Response
from ray_model_serving.serving.gate import LoadFailedError
from ray_model_serving.serving.guard import MemoryGuard
from ray_model_serving.serving.logs import Fields
from ray_model_serving.serving.phases import LoadPhases, Span
from ray_model_serving.serving.service import ModelService
from ray_model_serving.serving.tracing import Tracing, carrier_of
from ray_model_serving.serving.turns import watch_for_leaks
from ray_model_serving.serving.variants import Admit
from ray_model_serving.serving.warmup import Everyone, is_warmup
from ray_model_serving.serving.worker import ModelWorker, create_model
from ray_model_serving.telemetry import Telemetry


class BrokenReplicaError(RuntimeError):
    """Makes Serve replace a replica whose process can't go on."""


class ModelReplica:
    """One replica of one model. Serve's options for it come from ``contract.deployments.deployment_options``."""

    async def __init__(self, settings: ServingSettings, model_name: str) -> None:
        # Serve sends no traffic before this returns, has no time-out on it, and goes on answering the controller as
        # long as it awaits. A health check that raised while loading would count as a failed start instead.
        model = next(model for model in settings.models if model.name == model_name)
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        served = await asyncio.get_running_loop().run_in_executor(executor, create_model, model)
        telemetry, identity = Telemetry(ray.serve.metrics), _identity()
        self._tracing = tracing_of(settings.trace_endpoint, model.name)
        self._desk = RequestDesk(telemetry, tracing=self._tracing)
        self._deadline_s = model.limits.request_deadline_s
        self._settings = settings
        worker = self._new_worker(model, served=served)
        self._service = ModelService(
            model,
            worker,
            load_deadline_s=settings.load_deadline_s,
            executor=executor,
            telemetry=telemetry,
            problem_with=served.problem_with,
            identity=identity,
            cost=served.cost,
            guard=MemoryGuard(LimitReader().read, fraction=settings.memory_guard_fraction),
            desk=self._desk,
            new_worker=self._new_worker,
        )
        fields = {"model": model.name, **where()}
        Fields(fields, lambda: {"snapshot_id": worker.snapshot_id, "phase": worker.phase}).install()
        self._route, self._everyone = model.route, Everyone(served.example_inputs())
        self._waking: asyncio.Task[None] | None = None
        self._leak, self._watching = watch_for_leaks(settings, model, lambda: self._service.ongoing)
        if model.load_mode is LoadMode.BACKGROUND:
            await self._service.open()

    async def __call__(self, request: Request) -> HttpResponse:
        path: str = request.scope["path"]
        carrier = carrier_of(request.headers) if self._tracing and request.method == "POST" else None
        return to_http(await self._follow(request.method, path, request.stream(), carrier))

    async def forward(self, method: str, path: str, body: bytes, carrier: Mapping[str, str] | None = None) -> Response:
        """A request that the application's ingress passes on, with the trace headers of its span."""
        return await self._follow(method, path, _one_chunk(body), carrier)

    async def _follow(
        self, method: str, path: str, body: AsyncIterator[bytes], carrier: Mapping[str, str] | None
    ) -> Response:
        warmup = is_warmup(method, path, self._route)
        work = self._everyone.wake() if warmup else self._service.answer(method, path, body)
        request_id, replaced = serve_request.request_id()
        return await self._desk.follow(
            work, request_id=request_id, replaced=replaced, deadline_s=self._deadline_s, carrier=carrier
        )

    def _new_worker(
        self, model: ModelSettings, admit: Admit | None = None, *, served: ServedModel | None = None
    ) -> ModelWorker:
        phases = LoadPhases(model.name, lambda taken, error: self._trace_load(worker.snapshot_id, taken, error))
        worker = ModelWorker(self._settings, model, served, phases=phases, admit=admit)
        return worker

    def _trace_load(self, snapshot_id: str | None, phases: list[Span], error: str | None) -> None:
        if self._tracing:
            self._tracing.load(phases, {"snapshot_id": snapshot_id or ""}, error)

    async def wake(self) -> dict[str, object]:
        """Start the load where nobody has, as a first request would, and say where it is. Never waits for it."""
        if self._service.why_not_ready() and (self._waking is None or self._waking.done()):
            self._waking = asyncio.create_task(self._load())
            await asyncio.sleep(0)  # so that the status says that it began
        return self._service.status()

    async def _load(self) -> None:
        with suppress(LoadFailedError):  # the status tells it
            await self._service.open()

    async def check_health(self) -> None:
        """Raises only for what a new process would cure; a load in progress, long or failed, is not that."""
        fault = self._service.fault or self._leak.fault
        if fault:
            raise BrokenReplicaError(fault)

    def __del__(self) -> None:
        # Serve calls it once nothing runs any more or the grace period is over, also while __init__ is still loading;
        # the interpreter calls it again.
        service, watching, tracing = (self.__dict__.pop(name, None) for name in ("_service", "_watching", "_tracing"))
        if service:
            service.close()
        if watching:
            watching.cancel()
        if tracing:
            tracing.close()  # a load that still runs has nothing more to tell


def to_http(response: Response) -> HttpResponse:
    return HttpResponse(response.body, status_code=response.status, headers=dict(response.headers))


def where() -> dict[str, str]:
    """Of this replica, in the words of Serve's own log records."""
    context = ray.serve.get_replica_context()
    return {"application": context.app_name, "deployment": context.deployment, "replica": context.replica_tag}


def tracing_of(endpoint: str | None, name: str) -> Tracing | None:
    """None where no endpoint is set. ``name`` is the service's."""
    if endpoint is None:
        return None
    return Tracing(endpoint, {"service.name": name, **where()})


async def _one_chunk(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _identity() -> dict[str, object]:
    context = ray.get_runtime_context()
    return {
        "replica_id": ray.serve.get_replica_context().replica_id.unique_id,
        "actor_id": context.get_actor_id(),
        "node_id": context.get_node_id(),
        "pid": os.getpid(),
    }
