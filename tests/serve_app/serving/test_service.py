import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ray_model_serving.contract import metrics
from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.settings import ServingSettings
from ray_model_serving.serving.exchange import Response
from ray_model_serving.serving.service import ModelService
from ray_model_serving.telemetry import Telemetry

pytestmark = pytest.mark.asyncio

PATIENCE_S = 10.0


class FakeMetrics:
    """Keeps what was recorded, under (name, label value)."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str | None], float] = {}

    def Counter(self, name: str, description: str, tag_keys: tuple[str, ...]) -> "FakeInstrument":  # noqa: N802
        return FakeInstrument(self, name)

    def Gauge(self, name: str, description: str, tag_keys: tuple[str, ...]) -> "FakeInstrument":  # noqa: N802
        return FakeInstrument(self, name)


class FakeInstrument:
    def __init__(self, library: FakeMetrics, name: str) -> None:
        self.library, self.name = library, name

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.library.values[self.name, next(iter(tags.values()), None)] = value

    def inc(self, value: float, tags: dict[str, str]) -> None:
        key = (self.name, next(iter(tags.values()), None))
        self.library.values[key] = self.library.values.get(key, 0) + value


class FakeWorker:
    """A model that doubles text, and a load that can be held or fail."""

    def __init__(self) -> None:
        self.phase: str | None = None
        self.progress = None
        self.report: dict[str, Any] | None = None
        self.snapshot_id = "a" * 32
        self.loads = 0
        self.freed = 0
        self.closed = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.failure: Exception | None = None
        self.predict_failure: Exception | None = None
        self.outputs: list[Any] | None = None

    def load(self) -> None:
        self.loads += 1
        self.phase = "download"
        assert self.go_on.wait(PATIENCE_S)
        if self.failure:
            raise self.failure
        self.report = {
            "bytes": {"store": 90, "node": 0, "image": 0},
            "seconds": {"download": 1.5, "total": 2.0},
            "memory": {"model_bytes": 90, "peak_anon_bytes": 7, "peak_file_bytes": 90, "gpu_peak_bytes": 0},
        }

    def warm_up(self) -> None:
        self.phase = None

    def predict(self, inputs: list[Any]) -> list[Any]:
        assert self.go_on.wait(PATIENCE_S)
        if self.predict_failure:
            raise self.predict_failure
        return self.outputs or [value * 2 for value in inputs]

    def free(self) -> None:
        self.freed += 1

    def close(self) -> None:
        self.closed.set()


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


class Bench:
    """A service with a fake worker and fake metrics."""

    def __init__(self, args: dict[str, Any], executor: ThreadPoolExecutor) -> None:
        settings = ServingSettings.from_mapping(args)
        self.worker, self.metrics = FakeWorker(), FakeMetrics()
        self.service = ModelService(
            settings.models[0],
            self.worker,
            load_deadline_s=settings.load_deadline_s,
            executor=executor,
            telemetry=Telemetry(self.metrics),
            problem_with=lambda value: None if isinstance(value, str) else "must be text",
            identity={"replica_id": "r1"},
        )

    async def post(self, document: object, path: str = "/embed") -> Response:
        return await self.service.answer("POST", path, chunks(json.dumps(document).encode()))

    async def get(self, path: str) -> Response:
        return await self.service.answer("GET", path, chunks())

    def rejected(self, reason: str) -> float:
        return self.metrics.values.get((metrics.REJECTED.name, reason), 0)


def error_of(response: Response) -> dict[str, Any]:
    return json.loads(response.body)["error"]


@pytest.fixture
def make_bench(make_args) -> Iterator[Any]:
    with ThreadPoolExecutor(max_workers=1) as executor:
        made: list[Bench] = []

        def make(load_deadline_s: float = 60, **limits: Any) -> Bench:
            made.append(Bench(make_args({"limits": limits}, load_deadline_s=load_deadline_s), executor))
            return made[-1]

        yield make
        for bench in made:
            bench.worker.go_on.set()


async def test_the_first_request_loads_and_is_answered(make_bench):
    bench = make_bench()
    response = await bench.post({"inputs": ["a", "b"]})
    assert (response.status, json.loads(response.body)) == (200, {"outputs": ["aa", "bb"]})
    assert bench.worker.loads == 1


async def test_many_first_requests_load_once(make_bench):
    bench = make_bench(max_ongoing_requests=32)
    responses = await asyncio.gather(*(bench.post({"inputs": [str(number)]}) for number in range(32)))
    assert [json.loads(response.body)["outputs"] for response in responses] == [[str(n) * 2] for n in range(32)]
    assert bench.worker.loads == 1


async def test_a_request_whose_deadline_ends_before_the_load_is_told_to_come_back(make_bench):
    bench = make_bench(request_deadline_s=0.02)
    bench.worker.go_on.clear()
    response = await bench.post({"inputs": ["a"]})
    assert (response.status, error_of(response)["kind"]) == (503, "loading")
    assert int(response.headers["retry-after"]) >= 1
    assert bench.rejected("deadline") == 1

    bench.worker.go_on.set()
    await bench.service.open()
    assert (await bench.post({"inputs": ["a"]})).status == 200
    assert bench.worker.loads == 1, "the load goes on without the request that started it"


async def test_a_failed_load_is_one_clear_error_with_its_cause(make_bench):
    bench = make_bench()
    bench.worker.failure = ModelServingError("s3://models/minilm/: 403 AccessDenied", hint="check the role")
    response = await bench.post({"inputs": ["a"]})
    error = error_of(response)
    assert (response.status, error["kind"], error["permanent"]) == (503, "load_failed", True)
    assert "s3://models/minilm/: 403 AccessDenied" in error["message"]
    assert error["hint"] == "check the role"
    assert "retry-after" not in response.headers, "a permanent failure must not invite retries"
    assert bench.rejected("load_failed") == 1
    status = json.loads((await bench.get("/embed/status")).body)
    assert (status["state"], status["error"]["kind"]) == ("failed", "load_failed")
    assert bench.service.fault is None


async def test_a_prediction_over_the_deadline_is_a_504(make_bench):
    bench = make_bench(request_deadline_s=0.05)
    await bench.service.open()
    bench.worker.go_on.clear()
    response = await bench.post({"inputs": ["a"]})
    assert (response.status, error_of(response)["kind"]) == (504, "deadline")
    assert bench.rejected("deadline") == 1


async def test_a_body_that_does_not_arrive_is_a_408(make_bench):
    bench = make_bench(request_deadline_s=0.02)

    async def stalled() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    response = await bench.service.answer("POST", "/embed", stalled())
    assert response.status == 408


async def test_a_bad_request_does_not_start_a_load(make_bench):
    bench = make_bench(max_body_bytes=64)
    statuses = [
        (await bench.post({"inputs": [1]})).status,
        (await bench.post({"inputs": ["x" * 100]})).status,
        (await bench.service.answer("POST", "/embed", chunks(b"{"))).status,
        (await bench.post({"inputs": ["a"]}, path="/embed/other")).status,
    ]
    assert statuses == [422, 413, 400, 404]
    assert bench.worker.loads == 0
    assert (bench.rejected("bad_request"), bench.rejected("too_large")) == (3, 1)


async def test_another_method_is_a_405_that_names_the_right_one(make_bench):
    response = await make_bench().get("/embed")
    assert (response.status, response.headers["allow"]) == (405, "POST")


async def test_the_status_answers_during_a_load(make_bench):  # UR-018
    bench = make_bench()
    bench.worker.go_on.clear()
    request = asyncio.create_task(bench.post({"inputs": ["a"]}))
    while bench.worker.phase is None:
        await asyncio.sleep(0.001)

    status = json.loads((await bench.get("/embed/status")).body)
    assert (status["state"], status["phase"], status["load"]) == ("loading", "download", None)
    assert status["replica_id"] == "r1"
    assert bench.service.fault is None, "a load in progress is not a fault"

    bench.worker.go_on.set()
    await request
    status = json.loads((await bench.get("/embed/status")).body)
    assert (status["state"], status["load"]["bytes"]["store"]) == ("ready", 90)
    assert status["limits"]["max_ongoing_requests"] == 8


async def test_a_failing_model_is_a_500_with_its_cause_and_the_next_request_is_served(make_bench):
    bench = make_bench()
    bench.worker.predict_failure = ValueError("index out of range")
    response = await bench.post({"inputs": ["a"]})
    assert (response.status, error_of(response)["kind"]) == (500, "model_failed")
    assert "ValueError: index out of range" in error_of(response)["message"]
    bench.worker.predict_failure = None
    assert (await bench.post({"inputs": ["a"]})).status == 200
    assert bench.service.fault is None


async def test_outputs_that_are_no_json_are_a_500(make_bench):
    bench = make_bench()
    bench.worker.outputs = [float("nan")]
    response = await bench.post({"inputs": ["a"]})
    assert (response.status, error_of(response)["kind"]) == (500, "model_failed")


async def test_a_time_out_inside_the_model_is_not_taken_for_the_deadline(make_bench):
    bench = make_bench()
    bench.worker.predict_failure = TimeoutError("a lock of its own")
    response = await bench.post({"inputs": ["a"]})
    assert (response.status, error_of(response)["kind"]) == (500, "model_failed")


async def test_a_failed_device_makes_the_replica_unhealthy(make_bench):
    import torch

    bench = make_bench()
    bench.worker.predict_failure = torch.AcceleratorError("CUDA error: device-side assert triggered")
    assert (await bench.post({"inputs": ["a"]})).status == 500
    assert "device-side assert" in str(bench.service.fault), "every later call would fail in this process too"


async def test_a_load_over_its_deadline_makes_the_replica_unhealthy(make_bench):
    bench = make_bench(load_deadline_s=1)
    bench.worker.go_on.clear()
    response = await bench.post({"inputs": ["a"]})
    assert response.status == 503
    assert "load_deadline_s 1" in str(bench.service.fault)


async def test_every_declared_metric_is_recorded(make_bench):
    bench = make_bench()
    await bench.post({"inputs": [1]})
    await bench.post({"inputs": ["a"]})
    values = bench.metrics.values
    assert {name for name, _ in values} == {metric.name for metric in metrics.ALL}
    assert [values[metrics.MODEL_STATE.name, state] for state in metrics.STATES] == [0, 0, 0, 1, 0]
    assert values[metrics.MODEL_BYTES.name, "store"] == 90
    assert values[metrics.LOAD_SECONDS.name, "download"] == 1.5
    assert values[metrics.LOAD_PEAK_ANON_BYTES.name, None] == 7


async def test_a_label_outside_its_closed_set_is_refused():
    with pytest.raises(ValueError, match="reason='whatever' is not one of"):
        Telemetry(FakeMetrics()).rejected("whatever")


async def test_requests_over_the_limits_are_refused_at_once_and_the_status_still_answers(make_bench):  # UR-015, UR-018
    bench = make_bench(max_ongoing_requests=2, max_queued_requests=3)
    bench.worker.go_on.clear()
    burst = [asyncio.create_task(bench.post({"inputs": [str(number)]})) for number in range(12)]
    refused = [await task for task in burst[5:]]
    assert {response.status for response in refused} == {503}
    assert {error_of(response)["kind"] for response in refused} == {"busy"}
    assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
    assert (await bench.get("/embed/status")).status == 200, "a replica with all places taken still says why"
    bench.worker.go_on.set()
    served = await asyncio.gather(*burst[:5])
    assert [response.status for response in served] == [200] * 5
    assert (await bench.post({"inputs": ["again"]})).status == 200, "places are given back"
    assert bench.rejected("busy") == 7


@pytest.mark.parametrize("path", ["/", "/other", "/embedding", "//", "/-/x"])
async def test_a_path_of_somebody_else_gets_no_prediction(make_bench, path):
    response = await make_bench().post({"inputs": ["a"]}, path=path)
    assert (response.status, error_of(response)["kind"]) == (404, "not_found")


async def test_a_load_over_its_deadline_invites_the_caller_to_come_back(make_bench):
    bench = make_bench(load_deadline_s=1)
    bench.worker.go_on.clear()
    response = await bench.post({"inputs": ["a"]})
    assert error_of(response)["permanent"] is False, "Serve replaces the replica, and the next one may do better"
    assert int(response.headers["retry-after"]) >= 1
    assert bench.worker.loads == 1
    again = await bench.post({"inputs": ["a"]})
    assert (again.status, bench.worker.loads) == (503, 1), "its thread can't be stopped, so no second load begins"
