"""What our layer costs a request, in the process and beside the same model on plain Serve.

In the process: ``ModelService.answer`` from a body's bytes to a response's bytes, one request after the other, no wait
for company in a batch, beside the same prediction called directly and on a thread, which whatever keeps the event loop
free pays for. Over HTTP (one connection) and over a handle: plain Serve without and with ``@serve.batch``, and ours,
with no wait for company on either side. Requests alternate between the cases, in turning order.

The interval is a bootstrap over the rounds: of each round the difference of the two medians, of those the median, drawn
10000 times with replacement. An interval on both sides of 0 shows no significant difference at 95 %.
"""

import argparse
import asyncio
import http.client
import json
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import measuring
from benchmarks.serving_host import serve_host
from benchmarks.serving_load import BODY
from benchmarks.serving_models import make_model, settings

OURS = "ours"
PLAIN = "plain Serve"
BATCHED = "plain Serve with @serve.batch"
DIRECT = "the prediction called directly"
THREAD = "the prediction on a thread"
ANSWER = "ModelService.answer"
GOAL_US = 100
_DRAWS = 10_000
_WARM_UP = 50
_BATCH = 8

Medians = dict[str, list[float]]
"""For each case the median of each round, in microseconds."""


def bootstrap_interval(differences: Sequence[float]) -> tuple[float, float]:
    """95 % of the medians of draws with replacement; the draws are the same for the same input."""
    draw = random.Random(0)
    count = len(differences)
    medians = sorted(statistics.median(draw.choices(differences, k=count)) for _ in range(_DRAWS))
    return medians[int(0.025 * _DRAWS)], medians[int(0.975 * _DRAWS) - 1]


def alternate(send: dict[str, Callable[[], None]], rounds: int, count: int) -> Medians:
    """``count`` requests of each case a round, one by one in turning order."""
    names = list(send)
    medians: Medians = {name: [] for name in names}
    for number in range(-1, rounds):
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for step in range(count if number >= 0 else _WARM_UP):
            turn = step % len(names)
            for name in (*names[turn:], *names[:turn]):
                started = time.perf_counter()
                send[name]()
                seconds[name].append(time.perf_counter() - started)
        if number >= 0:
            for name in names:
                medians[name].append(statistics.median(seconds[name]) * 1e6)
    return medians


def over_http(port: int, names: dict[str, str], rounds: int, count: int) -> Medians:
    """One connection for each case."""
    connections = {case: http.client.HTTPConnection("127.0.0.1", port, timeout=10) for case in names}

    def send(case: str) -> None:
        connections[case].request("POST", f"/{names[case]}", BODY, {"content-type": "application/json"})
        answer = connections[case].getresponse()
        body = answer.read()
        if answer.status != 200 or json.loads(body) != {"outputs": ["a"]}:
            raise RuntimeError(f"{case} answered {answer.status} {body[:200]!r}")

    try:
        return alternate({case: lambda case=case: send(case) for case in names}, rounds, count)
    finally:
        for connection in connections.values():
            connection.close()


def over_handles(names: dict[str, str], rounds: int, count: int) -> Medians:
    """From the process that has Ray; ours gets and gives bytes, the plain one objects."""
    from ray import serve

    def send(case: str, handle: Any) -> None:
        if case == OURS:
            response = handle.forward.remote("POST", f"/{names[case]}", BODY).result()
            answer = json.loads(response.body)
        else:
            answer = handle.answer.remote(json.loads(BODY)).result()
        if answer != {"outputs": ["a"]}:
            raise RuntimeError(f"{case} answered {answer}")

    handles = {case: serve.get_app_handle(name) for case, name in names.items()}
    return alternate({case: lambda case=case: send(case, handles[case]) for case in names}, rounds, count)


class _NoMetrics:
    """Instruments that keep nothing: Ray's own count is not part of what a request costs here."""

    def __init__(self, *_args: object, **_options: object) -> None: ...
    def set(self, *_args: object, **_options: object) -> None: ...
    def inc(self, *_args: object, **_options: object) -> None: ...
    def observe(self, *_args: object, **_options: object) -> None: ...

    Counter: Any
    Gauge: Any
    Histogram: Any


_NoMetrics.Counter = _NoMetrics.Gauge = _NoMetrics.Histogram = _NoMetrics


async def in_process(model: Path, rounds: int, count: int) -> Medians:
    """Microseconds of a request without Ray."""
    from ray_model_serving.contract.settings import ServingSettings
    from ray_model_serving.host_memory import LimitReader
    from ray_model_serving.serving.desk import RequestDesk
    from ray_model_serving.serving.guard import MemoryGuard
    from ray_model_serving.serving.service import ModelService
    from ray_model_serving.serving.worker import ModelWorker, create_model
    from ray_model_serving.telemetry import Telemetry

    given = ServingSettings.from_mapping(
        settings(uri=f"file://{model}/", cache_root=str(model.parent / "cache"), limits={"batch_wait_s": 0})
    )
    served = create_model(given.models[0])
    with ThreadPoolExecutor(max_workers=1) as executor:
        service = ModelService(
            given.models[0],
            ModelWorker(given, given.models[0], served),
            load_deadline_s=given.load_deadline_s,
            executor=executor,
            telemetry=Telemetry(_NoMetrics()),
            problem_with=served.problem_with,
            identity={},
            cost=served.cost,
            guard=MemoryGuard(LimitReader().read, fraction=given.memory_guard_fraction),
        )
        await service.open()
        desk = RequestDesk(Telemetry(_NoMetrics()))
        loop = asyncio.get_running_loop()

        async def direct() -> None:
            served.predict_batch([0])

        async def on_a_thread() -> None:
            await loop.run_in_executor(executor, served.predict_batch, [0])

        async def answer() -> None:
            # As the replica does, with an id in the form of Serve's.
            work = service.answer("POST", "/", _body())
            response = await desk.follow(work, request_id="3c4b8a7e-0d7c-4a39-8a3b-6f6f4a1f2f11", deadline_s=30)
            if response.status != 200:
                raise RuntimeError(f"answered {response.status} {response.body!r}")

        async def full_batch() -> None:
            await asyncio.gather(*(answer() for _ in range(_BATCH)))

        ways: dict[str, tuple[Callable[[], Awaitable[None]], int]] = {
            DIRECT: (direct, 1),
            THREAD: (on_a_thread, 1),
            ANSWER: (answer, 1),
            f"{ANSWER}, {_BATCH} at once, each": (full_batch, _BATCH),
        }
        medians: Medians = {name: [] for name in ways}
        for number in range(-1, rounds):
            for name, (way, requests) in ways.items():
                seconds: list[float] = []
                for _ in range(count if number >= 0 else _WARM_UP):
                    started = time.perf_counter()
                    await way()
                    seconds.append((time.perf_counter() - started) / requests)
                if number >= 0:
                    medians[name].append(statistics.median(seconds) * 1e6)
        return medians


async def _body() -> AsyncIterator[bytes]:
    yield BODY


def run(arguments: argparse.Namespace) -> str:
    """The section of the report."""
    rounds, count = arguments.rounds, arguments.requests
    with tempfile.TemporaryDirectory(prefix="bench-serving-") as work:
        model = Path(work) / "model"
        make_model(model, predict_s=0, version="a", log=Path(work) / "loads")
        inside = asyncio.run(in_process(model, rounds, count))
        given = {"uri": f"file://{model}/", "cache_root": f"{work}/cache", "limits": {"batch_wait_s": 0}}
        directory = {"directory": str(model)}
        batch = {"max_batch_size": _BATCH, "batch_wait_timeout_s": 0}
        names = {OURS: "ours", PLAIN: "plain", BATCHED: "batched"}
        with serve_host() as host:
            host.call("deploy", name="ours", factory="benchmarks.serving_models:ours", arguments=given)
            host.call("deploy", name="plain", factory="benchmarks.serving_plain:unbatched", arguments=directory)
            host.call(
                "deploy", name="batched", factory="benchmarks.serving_plain:plain",
                arguments={**directory, "batch": batch, "max_ongoing_requests": _BATCH},
            )  # fmt: skip
            ways = {
                "HTTP": over_http(host.port, names, rounds, count),
                "handle": host.call(
                    "run", function="benchmarks.serving_request_cost:over_handles",
                    arguments={"names": names, "rounds": rounds, "count": count},
                ),
            }  # fmt: skip
    return f"{rounds} rounds of {count} requests each.\n\n{render(inside, ways)}"


def render(inside: Medians, ways: dict[str, Medians]) -> str:
    """Two tables: in the process, and beside plain Serve."""
    rows = [[name, f"{measuring.Spread.of(medians):.1f}"] for name, medians in inside.items()]
    whole, direct, thread = (statistics.median(inside[name]) for name in (ANSWER, DIRECT, THREAD))
    verdict = (
        f"Over the direct call our layer costs {whole - direct:.0f} us a request (goal: below {GOAL_US}, "
        f"{'met' if whole - direct < GOAL_US else 'missed'}), {thread - direct:.0f} of them for the thread."
    )
    parts = [
        measuring.table(["in the process, trivial model", "us a request"], rows),
        f"\n{verdict}\n",
    ]
    beside: list[list[str]] = []
    for way, medians in ways.items():
        for case, found in medians.items():
            cells = ["", ""]
            if case != OURS:
                differences = [ours - theirs for ours, theirs in zip(medians[OURS], found, strict=True)]
                low, high = bootstrap_interval(differences)
                cells = [f"{statistics.median(differences):+.0f} ({low:+.0f} to {high:+.0f})",
                         "no" if low <= 0 <= high else "yes"]  # fmt: skip
            beside.append([way, case, f"{measuring.Spread.of(found):.0f}", *cells])
    header = ["over", "case", "us a request", "ours minus this, us (95 % interval)", "significant"]
    return "\n".join([*parts, measuring.table(header, beside)])


def options() -> argparse.ArgumentParser:
    """Command line; its defaults are what ``python -m benchmarks`` runs."""
    parser = measuring.parser(__doc__, rounds=20)
    parser.add_argument("--requests", type=int, default=100, help="of each case a round (default %(default)s)")
    return parser


def main() -> None:
    print(measuring.environment() + "\n")
    print(run(options().parse_args()))


if __name__ == "__main__":
    main()
