"""The desk counts, logs and traces each request once; collectors and log files that are real, but no Ray."""

import asyncio
import logging
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from emulators.collector import collector
from ray_model_serving.app import build
from ray_model_serving.serving.desk import RequestDesk
from ray_model_serving.serving.exchange import RefusedError, Response, json_response
from ray_model_serving.serving.logs import LOGGER, Fields, Occasionally
from ray_model_serving.serving.phases import LoadPhases
from ray_model_serving.serving.requests import begin_stage, current_request, settled_id
from ray_model_serving.serving.tracing import TracesMissingError, Tracing, carrier_of
from ray_model_serving.telemetry import Telemetry, cache_result

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Counts:
    """A metrics library that keeps what counters counted, by their label's value."""

    def __init__(self) -> None:
        self.of: dict[str, float] = {}

    def Counter(self, name: str, description: str, tag_keys: tuple[str, ...]) -> "Counts":  # noqa: N802
        return self

    def Gauge(self, name: str, description: str, tag_keys: tuple[str, ...]) -> "Counts":  # noqa: N802
        return self

    def inc(self, value: float, tags: dict[str, str]) -> None:
        label = next(iter(tags.values()))
        self.of[label] = self.of.get(label, 0) + value


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append({**record.__dict__, "text": record.getMessage()})

    def of(self, event: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record.get("event") == event]


@pytest.fixture
def kept() -> Iterator[Kept]:
    """What goes to Serve's logger with the fields of a replica's records, which are gone at the end."""
    handler, level = Kept(), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    Fields({}).install()
    yield handler
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)
    for each in [each for each in LOGGER.filters if isinstance(each, Fields)]:
        LOGGER.removeFilter(each)


async def answers(status: int = 200, *, wait_s: float = 0.0) -> Response:
    begin_stage("queue")
    begin_stage("predict")
    await asyncio.sleep(wait_s)
    return json_response(status, {})


async def refuses(desk: RequestDesk, reason: str = "busy", message: str = "all places are taken") -> Response:
    return desk.refuse(RefusedError(503, reason, message, reason=reason), "embed")


@pytest.mark.parametrize("given", ["order-4711", "3c4b8a7e-0d7c-4a39-8a3b-6f6f4a1f2f11", "a" * 128, "~!{}"])
def test_an_id_of_one_printable_word_is_kept(given):
    assert settled_id(given) == given


@pytest.mark.parametrize("given", ["", "a" * 129, "two words", "line\nbreak", "line\n", "grün", "\x00", "\x1b[31m"])
def test_another_id_is_replaced(given):
    assert re.fullmatch(r"[0-9a-f-]{36}", settled_id(given))
    assert settled_id(given) != settled_id(given)


def test_a_flood_of_refusals_is_one_record_and_then_a_count(kept):
    counts = Counts()

    async def flood() -> list[Response]:
        desk = RequestDesk(Telemetry(counts), quiet_s=0.05)
        works = [desk.follow(refuses(desk), request_id=f"r-{n}", deadline_s=30) for n in range(500)]
        responses = await asyncio.gather(*works)
        while not kept.of("requests_refused"):
            await asyncio.sleep(0.01)
        await desk.follow(refuses(desk, "memory"), request_id="other", deadline_s=30)
        return responses

    responses = asyncio.run(flood())
    first, other = kept.of("request_refused")
    assert (first["request_id"], first["reason"], first["model"]) == ("r-0", "busy", "embed")
    assert (other["request_id"], other["reason"]) == ("other", "memory"), "another reason is not drowned by it"
    (told,) = kept.of("requests_refused")
    assert (told["reason"], told["count"]) == ("busy", 499)
    assert "request_id" not in told, "a count belongs to no request"
    assert counts.of == {"busy": 500, "memory": 1}
    assert all(f'"request_id": "r-{n}"'.encode() in response.body for n, response in enumerate(responses))


def test_what_is_rare_is_told_each_time():
    told: list[tuple[str, int]] = []

    async def twice() -> list[bool]:
        rare = Occasionally(lambda kind, count: told.append((kind, count)), quiet_s=0.01)
        first = rare.lets("busy")
        await asyncio.sleep(0.1)
        return [first, rare.lets("busy")]

    assert asyncio.run(twice()) == [True, True]
    assert told == [], "nothing came in between, so there is no count to tell"


def test_a_callers_mistake_is_logged_without_what_it_sent_and_a_failure_with_its_cause(kept):
    async def both() -> None:
        desk = RequestDesk(Telemetry(Counts()))

        async def bad() -> Response:
            return desk.refuse(RefusedError(422, "bad_inputs", "unknown key 'secret'"), "embed")

        async def failed() -> Response:
            refusal = RefusedError(500, "model_failed", "the model failed", reason="model_failed")
            refusal.__cause__ = ValueError("shapes do not fit")
            return desk.refuse(refusal, "embed")

        await desk.follow(bad(), request_id="a", deadline_s=30)
        await desk.follow(failed(), request_id="b", deadline_s=30)

    asyncio.run(both())
    bad, failed = kept.of("request_refused")
    assert "secret" not in str(bad)
    assert (bad["kind"], bad["levelname"]) == ("bad_inputs", "WARNING")
    assert failed["levelname"] == "ERROR"
    assert "shapes do not fit" in str(failed["exc_info"])


def test_a_slow_request_is_logged_with_the_seconds_of_its_stages(kept):
    async def slow() -> None:
        desk = RequestDesk(Telemetry(Counts()))
        await desk.follow(answers(wait_s=0.05), request_id="slow", deadline_s=0.05)
        await desk.follow(answers(), request_id="quick", deadline_s=30)

    asyncio.run(slow())
    (told,) = kept.of("request_slow")
    assert (told["request_id"], told["status"]) == ("slow", 200)
    assert set(told["stages"]) == {"queue", "predict"}
    assert 0.04 < told["stages"]["predict"] <= told["seconds"]


def test_each_record_of_a_process_says_whose_it_is(kept):
    phase: dict[str, object] = {"phase": "download"}
    Fields({"model": "other"}).install()
    Fields({"model": "embed", "application": "app"}, lambda: phase).install()
    LOGGER.info("one")
    LOGGER.info("two", extra={"model": "image", "phase": "map"})
    LOGGER.info("three", extra={"model": "embed/legal"})
    one, two, three = kept.records
    assert (one["model"], one["application"], one["phase"]) == ("embed", "app", "download")
    assert (two["model"], two["phase"]) == ("image", "map"), "what a record says of itself counts"
    assert "request_id" not in one
    assert "phase" not in three, "what the model's own load does says nothing of a variant's"


def test_a_replaced_id_is_in_the_answers_header():
    async def one(replaced: bool) -> Response:
        desk = RequestDesk(Telemetry(Counts()))
        return await desk.follow(answers(), request_id="new", replaced=replaced, deadline_s=30)

    assert asyncio.run(one(True)).headers["x-request-id"] == "new"
    assert "x-request-id" not in asyncio.run(one(False)).headers, "Serve's proxy adds it"


def test_a_request_whose_caller_is_gone_ends_its_span_and_is_not_counted():
    counts = Counts()

    async def cancelled(tracing: Tracing) -> None:
        desk = RequestDesk(Telemetry(counts), tracing=tracing)
        task = asyncio.create_task(desk.follow(answers(wait_s=60), request_id="gone", deadline_s=30, carrier={}))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with collector() as received:
        tracing = Tracing(received.url, {"service.name": "embed"})
        asyncio.run(cancelled(tracing))
        tracing.close()
        spans = received.wait_for(lambda spans: len(spans) >= 3)
    request = next(span for span in spans if span.name == "request")
    assert request.attributes["cancelled"] == "True"
    assert counts.of == {}


def test_spans_of_a_request_hang_below_the_callers_and_say_how_it_ended():
    async def requests(tracing: Tracing) -> None:
        desk = RequestDesk(Telemetry(Counts()), tracing=tracing)
        await desk.follow(answers(), request_id="good", deadline_s=30, carrier={"traceparent": PARENT})
        await desk.follow(refuses(desk), request_id="bad", deadline_s=30, carrier={"traceparent": "garbage\n"})
        await desk.follow(answers(), request_id="status", deadline_s=30)

    with collector() as received:
        tracing = Tracing(f"{received.url}/", {"service.name": "embed", "replica": "r1"})
        asyncio.run(requests(tracing))
        tracing.close()
        spans = received.wait_for(lambda spans: sum(span.name == "request" for span in spans) >= 2)
    good, bad = (span for span in spans if span.name == "request")
    assert (good.trace_id, good.parent_id) == tuple(PARENT.split("-")[1:3])
    assert [span.name for span in spans if span.parent_id == good.span_id] == ["queue", "predict"]
    assert (bad.parent_id, bad.failed, bad.attributes["reason"]) == ("", True, "busy")
    assert not good.failed
    assert good.resource["service.name"] == "embed"
    assert good.resource["replica"] == "r1"
    assert len([span for span in spans if span.name == "request"]) == 2, "without a carrier nothing is traced"


def test_a_caller_that_does_not_sample_is_followed_in_that():
    async def one(tracing: Tracing) -> dict[str, str] | None:
        desk = RequestDesk(Telemetry(Counts()), tracing=tracing)

        async def work() -> Response:
            begin_stage("predict")
            request = current_request()
            carriers.append(request.carrier if request else None)
            return json_response(200, {})

        carriers: list[dict[str, str] | None] = []
        unsampled = PARENT.removesuffix("01") + "00"
        await desk.follow(work(), request_id="a", deadline_s=30, carrier={"traceparent": unsampled})
        await desk.follow(work(), request_id="b", deadline_s=30, carrier={"traceparent": PARENT})
        return carriers[0]

    with collector() as received:
        tracing = Tracing(received.url, {"service.name": "embed"})
        passed_on = asyncio.run(one(tracing))
        tracing.close()
        spans = received.wait_for(lambda spans: len(spans) >= 2)
    assert {span.attributes.get("request_id", "b") for span in spans} == {"b"}
    assert passed_on
    assert passed_on["traceparent"].endswith("-00"), "the next process is told so too"


def test_a_load_is_a_trace_with_its_phases_and_a_failed_one_says_why():
    def load(phases: LoadPhases) -> None:
        phases.enter("resolve")
        phases.enter("resolve")
        phases.enter("download")

    def fail_after(work: Callable[[LoadPhases], None], phases: LoadPhases) -> None:
        with phases.failing():
            work(phases)
            raise OSError("disk")

    with collector() as received:
        tracing = Tracing(received.url, {"service.name": "embed"})
        phases = LoadPhases("embed", lambda taken, error: tracing.load(taken, {"snapshot_id": "s"}, error))
        with pytest.raises(OSError, match="disk"):
            fail_after(load, phases)
        assert phases.current == "download", "it goes on saying where the load was"
        with phases.failing():
            load(phases)
        phases.enter(None)
        tracing.close()
        spans = received.wait_for(lambda spans: sum(span.name == "load" for span in spans) >= 2)
    failed, good = (span for span in spans if span.name == "load")
    assert (failed.failed, good.failed) == (True, False)
    for one in (failed, good):
        assert [span.name for span in spans if span.parent_id == one.span_id] == ["resolve", "download"]


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def silent_server() -> socket.socket:
    """Accepts connections and never answers."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    return server


@pytest.mark.parametrize("silent", [True, False], ids=["never answers", "closed port"])
def test_a_collector_that_is_away_holds_no_request_and_no_end(silent):
    async def many(tracing: Tracing) -> list[int]:
        desk = RequestDesk(Telemetry(Counts()), tracing=tracing)
        works = [desk.follow(answers(), request_id=f"r-{n}", deadline_s=30, carrier={}) for n in range(3000)]
        return [response.status for response in await asyncio.gather(*works)]

    with closing(silent_server()) as server:
        port = server.getsockname()[1] if silent else free_port()
        tracing = Tracing(f"http://127.0.0.1:{port}", {"service.name": "embed"})
        statuses = asyncio.run(many(tracing))  # more spans than the queue takes: 9000 for 2048
        ending = time.monotonic()
        tracing.close()
        assert time.monotonic() - ending < 10, "an ending replica waits a second, not for the collector"
    assert statuses == [200] * 3000


@pytest.mark.parametrize(
    ("headers", "kept_names"),
    [
        ({}, []),
        ({"traceparent": PARENT}, ["traceparent"]),
        ({"traceparent": PARENT, "tracestate": "a=1"}, ["traceparent", "tracestate"]),
        ({"traceparent": PARENT, "tracestate": "a" * 513}, ["traceparent"]),
    ],
)
def test_only_trace_headers_of_the_length_that_w3c_allows_are_passed_on(headers, kept_names):
    assert list(carrier_of({**headers, "authorization": "secret"})) == kept_names


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported():
    code = (
        "import sys; import ray_model_serving.serving.desk, ray_model_serving.serving.tracing; "
        "ray_model_serving.serving.tracing.check_available(); "
        "print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == "[]"


def test_traces_without_their_packages_are_refused_when_the_application_is_built(monkeypatch, make_args):
    args = make_args(trace_endpoint="http://collector:4318")
    build(args)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(TracesMissingError, match="trace_endpoint is set") as raised:
        build(args)
    assert "[serve,traces]" in raised.value.hint
    build(make_args())


def test_a_collector_that_is_away_is_told_once_a_minute(caplog):
    exporters = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    exporters.filters.clear()  # as in a new process
    tracing = Tracing(f"http://127.0.0.1:{free_port()}", {"service.name": "embed"})
    for number in range(20):
        exporters.warning("no answer to try %d", number)
    tracing.close()
    assert [record.getMessage() for record in caplog.records if "no answer" in record.getMessage()] == [
        "no answer to try 0"
    ]


@pytest.mark.parametrize(
    ("store", "node", "image", "result"),
    [(9, 0, 0, "miss"), (4, 5, 0, "resumed"), (0, 9, 0, "hit"), (0, 0, 9, "image"), (0, 0, 0, "hit")],
)
def test_the_cache_result_follows_from_the_bytes(store, node, image, result):
    assert cache_result({"store": store, "node": node, "image": image}) == result
