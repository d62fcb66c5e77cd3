"""A request is followed from its answer to the log and the metric, and its trace to a collector, on real Ray Serve."""

import re
import time
from collections.abc import Callable
from typing import Any

from emulators.collector import Span, collector
from harness.metrics_page import RAYS_METRICS
from ray_model_serving.app import build
from ray_model_serving.contract import metrics

# What Ray puts on every metric of a process, and Serve on those of a replica (Ray 2.60).
RAYS_LABELS = {"Component", "NodeAddress", "SessionName", "Version", "WorkerId", "JobId", "NodeId"} | {
    f"otel_scope_{word}" for word in ("name", "version", "schema_url")
}
SERVES_LABELS = {"application", "deployment", "replica"}
OTHERS_SPAN, OTHERS_TRACE = "00f067aa0ba902b7", "4bf92f3577b34da6a3ce929d0e0e4736"


def eventually(look: Callable[[], Any], timeout_s: float = 15.0) -> Any:
    """Ray exports once a second; what ``look`` returns once it is true, or at last."""
    end = time.monotonic() + timeout_s
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def series(running_serve, deployment: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Our metrics of a deployment: by name and labels."""
    found = {}
    for line in running_serve.exported_metrics().splitlines():
        match = re.fullmatch(r"ray_(model_\w+)\{(.*)\} (\S+)", line)
        if match and f'deployment="{deployment}"' in line:
            labels = frozenset(re.findall(r'(\w+)="([^"]*)"', match[2]))
            found[match[1], labels] = float(match[3])
    return found


def value(found: dict[Any, float], name: str, label: str | None = None) -> float | None:
    return next(
        (v for (n, labels), v in found.items() if n == name and (not label or label in dict(labels).values())), None
    )


def test_a_refused_request_is_followed_from_its_answer_to_the_log_and_to_the_metric(
    running_serve, deploy, make_times_model, make_args, tmp_path
):  # UR-027
    route = running_serve.unique_route()
    name = route.strip("/")
    args = make_args(make_times_model().settings(route, load_mode="lazy"), cache_root=str(tmp_path / "cache"))
    deploy(build(args), route)

    with running_serve.client() as client:
        answered = client.post(route, json={"inputs": [2]}, headers={"x-request-id": "order-4711"})
        assert (answered.status_code, answered.headers["x-request-id"]) == (200, "order-4711")
        secret = "a-text-that-only-the-caller-may-see"
        refused = client.post(route, json={"inputs": [], secret: 1}, headers={"x-request-id": "order-4712"})
        assert (refused.status_code, refused.headers["x-request-id"]) == (422, "order-4712")
        assert refused.json()["error"]["request_id"] == "order-4712"
        made = client.get(f"{route}/nothing")
        assert made.json()["error"]["request_id"] == made.headers["x-request-id"], "Serve makes one where none came"

        records = running_serve.log_records(name)
        told = next(record for record in records if record.get("event") == "request_refused")
        assert (told["request_id"], told["reason"]) == ("order-4712", "bad_request")
        status = client.get(f"{route}/status").json()
        of_all = {"model": name, "application": name, "replica": status["replica_id"]}
        assert {key: told[key] for key in of_all} == of_all
        assert told["deployment"] == f"{name}_{name}", "Serve writes application and deployment into one"
        assert told["snapshot_id"] == status["snapshot_id"]
        assert secret not in str(records), "no input belongs in a log"
        begun = [record["phase"] for record in records if record.get("event") == "load_phase"]
        assert begun[0] == "resolve"
        assert begun[-2:] == ["map", "warm_up"]
        ready = next(record for record in records if record.get("event") == "load_ready")
        assert ready["seconds"] == status["load"]["seconds"]

        def counted() -> float | None:
            return value(series(running_serve, name), metrics.REJECTED.name, told["reason"])

        assert eventually(lambda: counted() == 2), "each refusal is counted once, also where the log was silent"
        before = series(running_serve, name)
        for number in range(30):
            client.post(route, json={"inputs": []}, headers={"x-request-id": f"flood-{number}"})
        assert eventually(lambda: counted() == 32)
        after = series(running_serve, name)
        rays = running_serve.exported_metrics()
        records = running_serve.log_records(name)

    assert set(before) == set(after), "requests add no time series"
    by_name = {metric.name: metric for metric in metrics.ALL}
    for metric_name, labels in after:
        metric = by_name[metric_name]
        own = {label: value for label, value in labels if label not in RAYS_LABELS | SERVES_LABELS}
        assert own.keys() == ({metric.label} if metric.label else set()), metric_name
        assert set(own.values()) <= set(metric.label_values), metric_name
    assert {name for name, _ in after} == set(by_name)
    assert value(after, metrics.CACHE.name, "hit") == 1
    assert value(after, metrics.LOADS_IN_FLIGHT.name) == 0
    assert not [name for name in RAYS_METRICS if f"\n{name}" not in rays], "docs/metrics.md refers to them"
    refusals = [record for record in records if record.get("event") == "request_refused"]
    assert len(refusals) == 1, "a flood of refusals is one record, and a count every ten seconds"


def test_answer_and_log_agree_where_the_callers_id_or_the_model_is_broken(
    running_serve, deploy, make_times_model, make_args, tmp_path
):
    prefix = running_serve.unique_route()
    first, second = f"{prefix}/a", f"{prefix}/b"
    args = make_args(cache_root=str(tmp_path / "cache"))
    args["models"] = [
        make_times_model().settings(first, load_mode="lazy"),
        make_times_model().settings(second, load_mode="lazy", model_class="serving_fakes:BrokenBuild"),
    ]
    deploy(build(args), prefix)

    hostile = ["x" * 10_000, "two words", "grün", '{"a":1}\ttab', ""]
    ids = []
    with running_serve.client() as client:
        for given in hostile:
            refused = client.post(first, json={"inputs": []}, headers={"x-request-id": given.encode()})
            assert refused.status_code == 422, given
            ids.append(refused.json()["error"]["request_id"])
            assert re.fullmatch(r"[0-9a-f-]{36}", ids[-1]), given
            if given:  # Serve makes one itself where it is empty, and sends the empty one back
                assert refused.headers.get_list("x-request-id")[0] == ids[-1]
    assert len(set(ids)) == len(hostile)
    records = running_serve.log_records(first.strip("/").replace("/", "-"))
    told = [record["request_id"] for record in records if record.get("event") == "request_refused"]
    assert told == ids[:1], "through the ingress, which is where it was replaced"

    with running_serve.client() as client:
        failed = client.post(second, json={"inputs": [1]}, headers={"x-request-id": "order-1"})
    assert failed.json()["error"]["request_id"] == "order-1"
    broken = second.strip("/").replace("/", "-")
    told = next(each for each in running_serve.log_records(broken) if each.get("event") == "load_failed")
    assert (told["request_id"], told["levelname"], told["phase"]) == ("order-1", "ERROR", "map")
    assert "config.json names no layers" in told["message"]

    def is_counted() -> bool:
        found = series(running_serve, broken)
        return (
            value(found, metrics.REJECTED.name, "load_failed") == value(found, metrics.MODEL_STATE.name, "failed") == 1
        )

    assert eventually(is_counted)
    assert value(series(running_serve, broken), metrics.LOADS_IN_FLIGHT.name) == 0


def test_traces_go_from_the_callers_span_through_the_ingress_to_the_forward_pass(
    running_serve, deploy, make_times_model, make_args, tmp_path
):
    prefix = running_serve.unique_route()
    first, second = f"{prefix}/a", f"{prefix}/b"
    with collector() as kept:
        args = make_args(cache_root=str(tmp_path / "cache"), trace_endpoint=kept.url)
        args["models"] = [make_times_model().settings(route, load_mode="lazy") for route in (first, second)]
        deploy(build(args), prefix)
        with running_serve.client() as client:
            headers = {"traceparent": f"00-{OTHERS_TRACE}-{OTHERS_SPAN}-01", "x-request-id": "order-1"}
            assert client.post(first, json={"inputs": [2]}, headers=headers).json() == {"outputs": [4.0]}
            garbage = {"traceparent": "00-zz-{}-01", "tracestate": "=" * 5000}
            assert client.post(first, json={"inputs": [2]}, headers=garbage).status_code == 200

        def enough(spans: list[Span]) -> bool:
            names = [span.name for span in spans]
            return names.count("request") >= 4 and "load" in names

        spans = kept.wait_for(enough)

    mine = [span for span in spans if span.trace_id == OTHERS_TRACE]
    ingress = next(span for span in mine if span.parent_id == OTHERS_SPAN)
    replica = next(span for span in mine if span.parent_id == ingress.span_id)
    stages = [span.name for span in mine if span.parent_id == replica.span_id]
    assert stages == ["queue", "body", "load", "batch_wait", "predict"]
    assert ingress.resource["service.name"] == "Ingress"
    name = first.strip("/").replace("/", "-")
    assert replica.resource["service.name"] == name
    assert replica.attributes["request_id"] == ingress.attributes["request_id"] == "order-1"
    assert replica.attributes["http.response.status_code"] == "200"
    others = {span.trace_id for span in spans if span.name == "request"} - {OTHERS_TRACE}
    assert len(others) == 1, "garbage begins a trace of its own, which ingress and replica share"
    load = next(span for span in spans if span.name == "load" and span.resource["service.name"] == name)
    phases = [span.name for span in spans if span.parent_id == load.span_id]
    assert phases[0] == "resolve"
    assert phases[-2:] == ["map", "warm_up"]
    assert len(load.attributes["snapshot_id"]) == 32
    assert not any(span.failed for span in spans)
    assert kept.paths == {"/v1/traces"}
