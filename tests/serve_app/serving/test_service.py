import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ray_model_serving.contract import metrics
from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.settings import ServingSettings
from ray_model_serving.host_memory import MemoryLimit
from ray_model_serving.serving.exchange import Response
from ray_model_serving.serving.guard import MemoryGuard
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

    def __init__(self, args: dict[str, Any], executor: ThreadPoolExecutor, **hooks: Any) -> None:
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
            **hooks,
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

        def make(load_deadline_s: float = 60, request_bytes: int = 0, **limits: Any) -> Bench:
            hooks = {name: limits.pop(name) for name in ("cost", "guard") if name in limits}
            scaling = {"target_ongoing_requests": 1}
            model = {"limits": limits, "autoscaling": scaling, "request_bytes": request_bytes}
            made.append(Bench(make_args(model, load_deadline_s=load_deadline_s), executor, **hooks))
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


class FakeLimit:
    """A cgroup of 1000 bytes."""

    def __init__(self) -> None:
        self.used_bytes = 0

    def __call__(self) -> MemoryLimit:
        return MemoryLimit(path=Path("/limit"), limit_bytes=1000, used_bytes=self.used_bytes)


def guard_of(limit: FakeLimit) -> MemoryGuard:
    ticks = itertools.count()
    return MemoryGuard(limit, fraction=0.85, clock=lambda: next(ticks))


@pytest.mark.parametrize("busy_status", [503, 429])
async def test_new_work_is_refused_while_memory_is_short_and_taken_again_after(make_bench, busy_status):
    limit = FakeLimit()
    bench = make_bench(guard=guard_of(limit), request_bytes=0, busy_status=busy_status)
    assert (await bench.post({"inputs": ["a"]})).status == 200
    limit.used_bytes = 900
    response = await bench.post({"inputs": ["a"]})
    assert (response.status, error_of(response)["kind"]) == (busy_status, "memory")
    assert error_of(response)["permanent"] is False
    assert "900 of 1000 bytes" in error_of(response)["message"]
    assert int(response.headers["retry-after"]) >= 1
    assert bench.rejected("memory") == 1
    status = json.loads((await bench.get("/embed/status")).body)
    assert status["memory_guard"]["state"] == "closed"
    limit.used_bytes = 100
    assert (await bench.post({"inputs": ["a"]})).status == 200


async def test_a_request_is_refused_when_memory_became_short_while_it_waited_for_its_place(make_bench):
    limit = FakeLimit()
    bench = make_bench(guard=guard_of(limit), request_bytes=0, max_ongoing_requests=1)
    await bench.service.open()
    bench.worker.go_on.clear()
    first = asyncio.create_task(bench.post({"inputs": ["a"]}))
    second = asyncio.create_task(bench.post({"inputs": ["b"]}))
    await asyncio.sleep(0.01)
    limit.used_bytes = 900
    bench.worker.go_on.set()
    assert (await first).status == 200, "what had begun is finished"
    assert error_of(await second)["kind"] == "memory"
    limit.used_bytes = 0
    assert (await bench.post({"inputs": ["c"]})).status == 200, "a refusal gives its place back"


async def test_what_requests_may_take_is_counted_before_they_take_it(make_bench):
    bench = make_bench(guard=guard_of(FakeLimit()), request_bytes=300)
    bench.worker.go_on.clear()
    tasks = [asyncio.create_task(bench.post({"inputs": [str(number)]})) for number in range(6)]
    while bench.service.ongoing < 3:
        await asyncio.sleep(0.001)
    bench.worker.go_on.set()
    statuses = [(await task).status for task in tasks]
    assert statuses.count(200) == 3, "three times 300 of 1000 bytes fit below where Ray kills, four do not"
    assert bench.rejected("memory") == 3


async def test_a_queue_over_its_limits_answers_with_the_status_that_was_set(make_bench):
    bench = make_bench(max_ongoing_requests=1, max_queued_requests=1, busy_status=429)
    bench.worker.go_on.clear()
    burst = [asyncio.create_task(bench.post({"inputs": [str(number)]})) for number in range(3)]
    refused = await burst[2]
    assert (refused.status, error_of(refused)["kind"]) == (429, "busy")
    bench.worker.go_on.set()
    await asyncio.gather(*burst)


async def test_an_input_that_costs_more_than_a_batch_is_a_413_before_any_load(make_bench):
    bench = make_bench(cost=len, max_batch_cost=4)
    response = await bench.post({"inputs": ["ab", "abcde"]})
    assert (response.status, error_of(response)["kind"]) == (413, "input_too_costly")
    assert "costs 5" in error_of(response)["message"]
    assert "max_batch_cost 4" in error_of(response)["message"]
    assert (bench.worker.loads, bench.rejected("too_large")) == (0, 1)
    assert (await bench.post({"inputs": ["ab", "abcd"]})).status == 200


async def test_a_class_that_can_not_count_is_a_500_and_not_a_hang(make_bench):
    def cost(value: object) -> int:
        return 0

    bench = make_bench(cost=cost, max_batch_cost=4)
    response = await bench.post({"inputs": ["ab"]})
    assert (response.status, error_of(response)["kind"]) == (500, "model_failed")
    assert "cost() gave 0" in error_of(response)["message"]


async def test_out_of_device_memory_fails_those_requests_only_and_is_no_device_fault(make_bench):
    import torch

    bench = make_bench()
    bench.worker.predict_failure = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    response = await bench.post({"inputs": ["a", "b"]})
    assert (response.status, error_of(response)["kind"]) == (503, "out_of_memory")
    assert "Tried to allocate 2.00 GiB" in error_of(response)["message"]
    assert bench.rejected("memory") == 1
    assert bench.worker.freed == 3, "before the halves, and after each"
    assert bench.service.fault is None, "the device goes on working"
    bench.worker.predict_failure = None
    assert (await bench.post({"inputs": ["a"]})).status == 200


async def test_ready_means_loaded_and_warm(make_bench):  # UR-092
    bench = make_bench()

    async def ready() -> tuple[int, dict[str, Any]]:
        response = await bench.get("/embed/ready")
        return response.status, json.loads(response.body)

    status, document = await ready()
    assert (status, document["state"], document["why_not_ready"]) == (503, "unloaded", "the model is unloaded")
    bench.worker.go_on.clear()
    opening = asyncio.create_task(bench.service.open())
    while bench.worker.phase is None:
        await asyncio.sleep(0.001)
    status, document = await ready()
    assert (status, document["phase"]) == (503, "download")
    assert document["why_not_ready"] == "the model is loading, phase download"
    bench.worker.go_on.set()
    await opening
    assert await ready() == (200, {"ready": True, "state": "ready", "phase": None, "why_not_ready": None})
    assert json.loads((await bench.get("/embed/status")).body)["ready"] is True


async def test_ready_tells_the_cause_of_a_failed_load(make_bench):
    bench = make_bench()
    bench.worker.failure = ModelServingError("403 AccessDenied", hint="check the role")
    await bench.post({"inputs": ["a"]})
    response = await bench.get("/embed/ready")
    assert response.status == 503
    assert "403 AccessDenied" in json.loads(response.body)["why_not_ready"]


async def test_a_warm_up_that_raises_is_a_failed_load_and_the_replica_is_not_ready(make_bench, monkeypatch):  # UR-092
    bench = make_bench()

    def raise_in_warm_up() -> None:
        raise ValueError("no kernel image")

    monkeypatch.setattr(bench.worker, "warm_up", raise_in_warm_up)
    response = await bench.post({"inputs": ["a"]})
    assert "ValueError: no kernel image" in error_of(response)["message"]
    assert (await bench.get("/embed/ready")).status == 503


async def test_a_warm_up_that_hangs_is_over_at_the_loads_deadline(make_bench, monkeypatch):  # UR-092
    bench = make_bench(load_deadline_s=1)
    release = threading.Event()
    monkeypatch.setattr(bench.worker, "warm_up", lambda: release.wait(PATIENCE_S))
    try:
        response = await bench.post({"inputs": ["a"]})
        assert "warming was not over after load_deadline_s 1" in error_of(response)["message"]
        assert bench.service.fault
        assert (await bench.get("/embed/ready")).status == 503
    finally:
        release.set()


async def test_a_pass_that_hangs_makes_the_replica_unhealthy_and_one_that_ends_does_not(make_bench, monkeypatch):
    bench = make_bench(request_deadline_s=0.05)
    await bench.service.open()
    bench.worker.go_on.clear()
    assert (await bench.post({"inputs": ["a"]})).status == 504
    assert bench.service.fault is None, "slow for once is no reason to lose a loaded replica"
    monkeypatch.setattr("ray_model_serving.serving.engine.HUNG_MARGIN_S", -0.05)
    assert "it hangs" in str(bench.service.fault)
    assert (await bench.get("/embed/ready")).status == 503
    bench.worker.go_on.set()
    while bench.service.fault:
        await asyncio.sleep(0.001)


async def test_a_draining_replica_refuses_new_work_and_finishes_what_runs(make_bench):
    bench = make_bench(max_ongoing_requests=1)
    await bench.service.open()
    bench.worker.go_on.clear()
    running = asyncio.create_task(bench.post({"inputs": ["a"]}))
    waiting = asyncio.create_task(bench.post({"inputs": ["b"]}))
    await asyncio.sleep(0.01)
    bench.service.drain("its node goes")
    response = await bench.post({"inputs": ["c"]})
    assert (response.status, error_of(response)["kind"]) == (503, "draining")
    assert "its node goes" in error_of(response)["message"]
    assert int(response.headers["retry-after"]) >= 1
    ready = await bench.get("/embed/ready")
    assert (ready.status, json.loads(ready.body)["why_not_ready"]) == (503, "draining: its node goes")
    assert json.loads((await bench.get("/embed/status")).body)["draining"] is True
    bench.worker.go_on.set()
    assert (await running).status == 200
    assert error_of(await waiting)["kind"] == "draining", "what had not begun goes to another replica"
    assert bench.rejected("draining") == 2


async def test_closing_during_a_load_leaves_nothing_open_once_the_load_ends(make_bench):
    bench = make_bench()
    bench.worker.go_on.clear()
    waiting = asyncio.create_task(bench.post({"inputs": ["a"]}))
    while bench.worker.phase is None:
        await asyncio.sleep(0.001)
    bench.service.close()
    assert not bench.worker.closed.is_set(), "the load still uses its files"
    bench.worker.go_on.set()
    assert await asyncio.to_thread(bench.worker.closed.wait, PATIENCE_S)
    assert error_of(await waiting)["kind"] == "draining", "a model whose files are closed may not be asked"
    assert (await bench.post({"inputs": ["a"]})).status == 503


async def test_closing_fails_what_no_pass_has_begun_with(make_bench):
    bench = make_bench(max_batch_size=1)
    await bench.service.open()
    bench.worker.go_on.clear()
    running = asyncio.create_task(bench.post({"inputs": ["a"]}))
    waiting = asyncio.create_task(bench.post({"inputs": ["b"]}))
    await asyncio.sleep(0.01)
    bench.service.close()
    assert error_of(await waiting)["kind"] == "draining"
    bench.worker.go_on.set()
    assert (await running).status == 200
    bench.service.close()


async def test_a_probe_is_answered_while_a_load_holds_its_thread(make_bench):  # UR-094
    bench = make_bench()
    bench.worker.go_on.clear()
    opening = asyncio.create_task(bench.service.open())
    while bench.worker.phase is None:
        await asyncio.sleep(0)
    # The load waits for an event that only this loop sets: were the loop not free, nothing below would be reached.
    for _ in range(100):
        assert bench.service.fault is None
        assert (await bench.get("/embed/ready")).status == 503
        assert (await bench.get("/embed/status")).status == 200
    bench.worker.go_on.set()
    await opening
