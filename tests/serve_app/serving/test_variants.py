"""Several sets of weights in one replica, without Ray: who waits for whom, and whose memory goes."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.settings import ModelSettings, ServingSettings
from ray_model_serving.serving.exchange import Response
from ray_model_serving.serving.service import ModelService
from ray_model_serving.telemetry import Telemetry

pytestmark = pytest.mark.asyncio

PATIENCE_S = 10.0


class Node:
    """What the fake weights of all variants take together, and how each load goes."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.held: dict[str, threading.Event] = {}
        self.fetch_s: dict[str, float] = {}
        self.failures: dict[str, list[Exception]] = {}
        self.warm_up_failures: dict[str, list[Exception]] = {}
        self.loads: list[str] = []
        self.in_memory: dict[str, int] = {}
        self.peak = 0
        self.lock = threading.Lock()


class Weights:
    """A worker whose model answers with its own name."""

    def __init__(self, node: Node, name: str, admit: Callable[[int], None] | None) -> None:
        self.node, self.name, self.admit = node, name, admit
        self.phase: str | None = None
        self.progress = None
        self.report: dict[str, Any] | None = None
        self.snapshot_id = "a" * 32
        self.closed = threading.Event()
        self.before_predict: Callable[[], object] = list

    def load(self) -> None:
        node = self.node
        node.loads.append(self.name)
        if failures := node.failures.get(self.name):
            raise failures.pop()
        if fetch_s := node.fetch_s.get(self.name):
            time.sleep(fetch_s)
        size = node.sizes.get(self.name, 10)
        if self.admit:
            self.admit(size)
        if held := node.held.get(self.name):
            assert held.wait(PATIENCE_S)
        with node.lock:
            node.in_memory[self.name] = size
            node.peak = max(node.peak, sum(size for name, size in node.in_memory.items() if "/" in name))
        self.report = {
            "bytes": {"store": 1, "node": 0, "image": 0},
            "seconds": {"total": 1.0},
            "memory": {"model_bytes": size, "peak_anon_bytes": 1, "peak_file_bytes": 1, "gpu_peak_bytes": 0},
        }

    def warm_up(self) -> None:
        if failures := self.node.warm_up_failures.get(self.name):
            raise failures.pop()

    def predict(self, inputs: list[Any]) -> list[Any]:
        self.before_predict()
        assert self.name in self.node.in_memory, "never asked once its memory is gone"
        return [f"{self.name}: {value}" for value in inputs]

    def free(self) -> None: ...

    def close(self) -> None:
        self.closed.set()

    def unload(self) -> None:
        with self.node.lock:
            self.node.in_memory.pop(self.name, None)


class Instruments:
    """Metrics that are not looked at here, but for loads under way."""

    def __init__(self) -> None:
        self.loads: list[float] = []

    def Counter(self, name: str, **_: Any) -> "Instruments":  # noqa: N802
        return Instruments()

    def Gauge(self, name: str, **_: Any) -> "Instruments":  # noqa: N802
        return self if name == "model_loads_in_flight" else Instruments()

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.loads.append(value)

    def inc(self, value: float, tags: dict[str, str]) -> None: ...


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


class Bench:
    def __init__(self, model: ModelSettings, load_deadline_s: float, executor: ThreadPoolExecutor) -> None:
        self.node, self.metrics = Node(), Instruments()
        self.made: list[Weights] = []
        self.service = ModelService(
            model,
            Weights(self.node, model.name, None),
            load_deadline_s=load_deadline_s,
            executor=executor,
            telemetry=Telemetry(self.metrics),
            problem_with=lambda value: None,
            identity={"replica_id": "r1"},
            new_worker=self._new_worker,
        )

    def _new_worker(self, model: ModelSettings, admit: Callable[[int], None]) -> Weights:
        assert model.uri.endswith(f"/{model.name.split('/')[1]}/"), "each has its own files"
        self.made.append(Weights(self.node, model.name, admit))
        return self.made[-1]

    async def ask(self, name: str = "", value: str = "x") -> Response:
        path = f"/embed/{name}".rstrip("/")
        return await self.service.answer("POST", path, chunks(json.dumps({"inputs": [value]}).encode()))

    def begin(self, name: str) -> "asyncio.Task[Response]":
        return asyncio.create_task(self.ask(name))

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        response = await self.service.answer("GET", path, chunks())
        return response.status, json.loads(response.body)

    def states(self) -> dict[str, str]:
        variants: Any = self.service.status()["variants"]
        return {name: str(one["state"]) for name, one in variants["models"].items()}

    def users(self, name: str) -> int:
        variants: Any = self.service.status()["variants"]
        return int(variants["models"][name]["in_use"])

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.001)


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench(make_args) -> Iterator[MakeBench]:
    with ThreadPoolExecutor(max_workers=1) as executor:
        made: list[Bench] = []

        def make(budget: int = 20, names: str = "abc", load_deadline_s: float = 60, **limits: Any) -> Bench:
            settings = ServingSettings.from_mapping(
                make_args(
                    {
                        "limits": limits,
                        "autoscaling": {"target_ongoing_requests": 1},
                        "variants": [{"name": name, "uri": f"s3://models/{name}/"} for name in names],
                        "weights_bytes": 10,
                        "resident_bytes": budget,
                        "request_bytes": 0,
                    },
                    load_deadline_s=load_deadline_s,
                )
            )
            made.append(Bench(settings.models[0], load_deadline_s, executor))
            return made[-1]

        yield make
        for bench in made:
            for held in bench.node.held.values():
                held.set()


def outputs(response: Response) -> Any:
    return json.loads(response.body)["outputs"]


def error_of(response: Response) -> dict[str, Any]:
    return json.loads(response.body)["error"]


async def test_each_route_answers_with_its_own_weights(make_bench: MakeBench):
    bench = make_bench()
    answers = [outputs(await bench.ask(name)) for name in ("", "a", "b", "a")]
    assert answers == [["embed: x"], ["embed/a: x"], ["embed/b: x"], ["embed/a: x"]]
    assert bench.node.loads == ["embed", "embed/a", "embed/b"]


async def test_a_variant_that_loads_holds_up_neither_the_model_nor_another_variant(make_bench: MakeBench):  # UR-017
    bench = make_bench()
    bench.node.held["embed/a"] = threading.Event()
    waiting = bench.begin("a")
    await bench.until(lambda: bench.states()["a"] == "loading")
    assert outputs(await bench.ask()) == ["embed: x"]
    assert outputs(await bench.ask("b")) == ["embed/b: x"]
    assert not waiting.done()
    bench.node.held["embed/a"].set()
    assert (await waiting).status == 200


async def test_many_first_requests_of_a_variant_load_it_once(make_bench: MakeBench):  # UR-017
    bench = make_bench(max_ongoing_requests=32)
    answers = await asyncio.gather(*(bench.ask("a") for _ in range(32)))
    assert {answer.status for answer in answers} == {200}
    assert bench.node.loads == ["embed/a"]


async def test_the_least_recently_used_makes_room_by_bytes(make_bench: MakeBench):
    bench = make_bench(budget=20)
    for name in ("a", "b", "a", "c"):
        assert (await bench.ask(name)).status == 200
    assert bench.states() == {"a": "ready", "b": "unloaded", "c": "ready"}
    assert bench.node.peak <= 20, "what leaves is gone before its bytes are taken again"
    bench.node.sizes["embed/b"] = 20
    assert outputs(await bench.ask("b")) == ["embed/b: x"]
    assert bench.states() == {"a": "unloaded", "b": "ready", "c": "unloaded"}, "a large one sends two away"


async def test_one_in_use_is_not_unloaded_and_whoever_wants_its_place_waits(make_bench: MakeBench):
    bench = make_bench(budget=10)
    assert (await bench.ask("a")).status == 200
    held = threading.Event()
    bench.made[0].before_predict = lambda: held.wait(PATIENCE_S)
    first = bench.begin("a")
    await bench.until(lambda: bench.users("a") == 1)
    second = bench.begin("b")
    await bench.until(lambda: "embed/b" in bench.node.loads)
    await asyncio.sleep(0.05)  # nothing tells from outside that the other has been told to go
    third = bench.begin("a")
    await asyncio.sleep(0.01)
    assert "embed/a" in bench.node.in_memory
    assert not second.done()
    held.set()
    assert [(await task).status for task in (first, second, third)] == [200, 200, 200]
    assert bench.node.loads == [f"embed/{name}" for name in "aba"], "nobody is kept out by constant traffic"
    assert bench.node.peak == 10


async def test_a_request_that_is_cancelled_does_not_end_the_load_nor_keep_its_place(make_bench: MakeBench):
    bench = make_bench(budget=10)
    bench.node.held["embed/a"] = threading.Event()
    task = bench.begin("a")
    await bench.until(lambda: bench.states()["a"] == "loading")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    other = bench.begin("b")
    await asyncio.sleep(0.01)
    assert "embed/b" not in bench.node.in_memory, "a load under way keeps its bytes"
    bench.node.held["embed/a"].set()
    assert (await other).status == 200
    assert bench.states()["a"] == "unloaded"


async def test_one_that_is_too_large_is_a_permanent_error_with_both_numbers_and_unloads_nobody(make_bench: MakeBench):
    bench = make_bench(budget=20)
    bench.node.sizes["embed/c"] = 21
    assert (await bench.ask("a")).status == 200
    error = error_of(await bench.ask("c"))
    assert (error["kind"], error["permanent"]) == ("load_failed", True)
    assert "21 bytes are over the 20" in error["message"]
    assert "resident_gib" in error["hint"]
    assert bench.states()["a"] == "ready"
    assert bench.node.loads.count("embed/c") == 1
    assert error_of(await bench.ask("c"))["permanent"]
    assert bench.node.loads.count("embed/c") == 1, "what is permanent is not tried again"


@pytest.mark.parametrize("step", ["failures", "warm_up_failures"])
async def test_a_load_that_failed_gives_its_memory_back_and_is_tried_again(
    make_bench: MakeBench, step: str, monkeypatch
):
    monkeypatch.setattr("ray_model_serving.serving.gate.FIRST_BACKOFF_S", 0.0)
    bench = make_bench(budget=10)
    failure = ModelServingError("the store was away")
    failure.permanent = False
    getattr(bench.node, step)["embed/a"] = [failure]
    response = await bench.ask("a")
    assert (response.status, error_of(response)["kind"]) == (503, "load_failed")
    assert "the store was away" in error_of(response)["message"]
    assert (await bench.ask("b")).status == 200
    assert bench.node.peak == 10
    assert bench.service.fault is None
    assert bench.service.why_not_ready() is not None, "the model itself was never asked for"


async def test_a_variant_that_finds_no_room_in_time_invites_the_caller_to_come_back(make_bench: MakeBench):
    bench = make_bench(budget=10, load_deadline_s=1, request_deadline_s=30)
    bench.node.held["embed/a"] = threading.Event()
    first = bench.begin("a")
    await bench.until(lambda: bench.states()["a"] == "loading")
    response = await bench.ask("b")
    error = error_of(response)
    assert (response.status, error["permanent"], "retry-after" in response.headers) == (503, False, True)
    assert "10 bytes were not free within 0.5 s of the load's begin" in error["message"]
    assert "taken by a" in error["message"]
    assert bench.states()["b"] == "failed"
    bench.node.held["embed/a"].set()
    await first
    assert bench.service.fault is None, "to wait for room is no load that hangs"


async def test_one_request_deadline_covers_the_wait_for_a_place_in_memory(make_bench: MakeBench):
    bench = make_bench(budget=10, request_deadline_s=0.05)
    bench.node.held["embed/a"] = threading.Event()
    responses = await asyncio.gather(bench.ask("a"), bench.ask("b"))
    assert [error_of(response)["kind"] for response in responses] == ["loading", "loading"]
    assert all(int(response.headers["retry-after"]) >= 1 for response in responses)


async def test_limits_are_those_of_the_replica_whatever_the_variant(make_bench: MakeBench):
    bench = make_bench(max_ongoing_requests=2, max_queued_requests=1)
    for name in "abc":
        bench.node.held[f"embed/{name}"] = threading.Event()
    burst = [bench.begin(name) for name in ("a", "b", "c", "a")]
    response = await burst[3]
    assert (response.status, error_of(response)["kind"]) == (503, "busy")
    for held in bench.node.held.values():
        held.set()
    assert [(await task).status for task in burst[:3]] == [200, 200, 200]


async def test_an_unknown_variant_is_a_404_that_lists_the_names(make_bench: MakeBench):
    response = await make_bench().ask("nobody")
    assert (response.status, error_of(response)["kind"]) == (404, "not_found")
    assert "a, b, c" in error_of(response)["hint"]


async def test_status_and_readiness_of_a_variant_have_routes_of_their_own(make_bench: MakeBench):
    bench = make_bench()
    assert await bench.get("/embed/a/ready") == (
        503,
        {
            "ready": False,
            "state": "unloaded",
            "phase": None,
            "why_not_ready": "it is loaded when a request asks for it",
        },
    )
    await bench.ask("a")
    assert (await bench.get("/embed/a/ready"))[0] == 200
    status, document = await bench.get("/embed/a/status")
    assert (status, document["variant"], document["bytes"], document["in_use"]) == (200, "a", 10, 0)
    assert document["replica_id"] == "r1"
    variants = (await bench.get("/embed/status"))[1]["variants"]
    assert (variants["budget_bytes"], variants["taken_bytes"]) == (20, 10)
    assert variants["least_recently_used_first"] == ["a"]
    bench.service.drain("it is being shut down")
    assert (await bench.get("/embed/a/ready"))[0] == 503
    assert (await bench.ask("a")).status == 503


async def test_loads_of_variants_are_counted_as_loads_under_way(make_bench: MakeBench):
    bench = make_bench()
    await asyncio.gather(bench.ask(), bench.ask("a"), bench.ask("b"))
    assert max(bench.metrics.loads) >= 1
    assert bench.metrics.loads[-1] == 0


async def test_a_variant_whose_device_failed_makes_the_replica_unhealthy(make_bench: MakeBench):
    import torch

    bench = make_bench()
    await bench.ask("a")

    def fail() -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    bench.made[0].before_predict = fail
    assert (await bench.ask("a")).status == 500
    assert "device-side assert" in str(bench.service.fault)


async def test_the_traceback_of_a_class_that_fails_in_its_load_is_logged_under_the_variants_name(
    make_bench: MakeBench, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("ERROR", logger="ray.serve")
    bench = make_bench()
    bench.node.warm_up_failures["embed/a"] = [ZeroDivisionError("by nought")]
    error = error_of(await bench.ask("a"))
    assert "by nought" in error["message"]
    told = [record for record in caplog.records if record.exc_info]
    assert [record.__dict__["model"] for record in told] == ["embed/a"], "the error's hint sends its reader to the log"
    assert "in warm_up" in caplog.text


async def test_a_device_that_failed_is_known_after_its_variant_made_room(make_bench: MakeBench):
    import torch

    bench = make_bench(budget=10)
    await bench.ask("a")
    started, go_on = threading.Event(), threading.Event()

    def fail() -> None:
        started.set()
        assert go_on.wait(PATIENCE_S)
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    bench.made[0].before_predict = fail
    failing = bench.begin("a")
    await asyncio.to_thread(started.wait, PATIENCE_S)
    waiting = bench.begin("b")
    await bench.until(lambda: "embed/b" in bench.node.loads)
    go_on.set()
    assert (await failing).status == 500
    assert (await waiting).status == 200
    assert bench.states()["a"] == "unloaded"
    assert "device-side assert" in str(bench.service.fault)


async def test_a_pass_that_hangs_in_a_variant_that_has_to_go_makes_the_replica_unhealthy(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ray_model_serving.serving.engine.HUNG_MARGIN_S", 0.0)
    bench = make_bench(budget=10, request_deadline_s=0.3)
    await bench.ask("a")
    go_on = threading.Event()
    bench.made[0].before_predict = lambda: go_on.wait(PATIENCE_S)
    try:
        responses = await asyncio.gather(bench.ask("a"), bench.ask("b"))
        assert [response.status for response in responses] == [504, 503]
        assert bench.users("a") == 0, "its request is over, and it would make room if its thread came back"
        await bench.until(lambda: bench.service.fault is not None)
        assert "it hangs" in str(bench.service.fault), "or nothing would ever give its memory back"
    finally:
        go_on.set()


async def test_a_long_fetch_leaves_less_time_to_wait_for_room(make_bench: MakeBench):
    bench = make_bench(budget=10, load_deadline_s=2, request_deadline_s=30)
    bench.node.held["embed/a"] = threading.Event()
    first = bench.begin("a")
    await bench.until(lambda: bench.states()["a"] == "loading")
    bench.node.fetch_s["embed/b"] = 1.5
    response = await bench.ask("b")
    assert error_of(response)["permanent"] is False
    assert bench.service.fault is None, "the time for the wait begins with the load, or the replica would be replaced"
    bench.node.held["embed/a"].set()
    await first


async def test_the_end_fails_whoever_waits_for_room_and_closes_every_file(make_bench: MakeBench):
    bench = make_bench(budget=10)
    bench.node.held["embed/a"] = threading.Event()
    tasks = [bench.begin("a"), bench.begin("b")]
    await bench.until(lambda: "embed/b" in bench.node.loads)
    bench.service.close()
    bench.node.held["embed/a"].set()
    responses = await asyncio.gather(*tasks)
    assert {response.status for response in responses} <= {200, 503}
    for worker in bench.made:
        assert await asyncio.to_thread(worker.closed.wait, PATIENCE_S)


async def test_a_crowd_over_five_variants_with_room_for_two_is_answered_or_refused_and_never_stuck(
    make_bench: MakeBench,
):
    bench = make_bench(20, "abcde", max_ongoing_requests=64, max_queued_requests=64, request_deadline_s=10)
    tasks = [bench.begin("abcde"[number % 5]) for number in range(50)]
    for task in tasks[::7]:
        await asyncio.sleep(0)
        task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert {200} <= {one.status for one in answers if isinstance(one, Response)} <= {200, 503}
    assert bench.node.peak <= 20
    for name in "abcde":
        assert (await bench.ask(name)).status == 200
