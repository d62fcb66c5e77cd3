"""``docs/metrics.md``: every metric of the serving library, from its declaration, and how to follow a request."""

from collections.abc import Iterator

from ray_model_serving.contract import metrics
from ray_model_serving.contract.metrics import Metric

RAYS_METRICS = {
    "ray_serve_num_http_requests_total": "requests that the proxies got, by `route`, `method` and `status_code`",
    "ray_serve_num_http_error_requests_total": "of those the ones with a status of 400 and above, by `error_code`; "
    "also what Serve refuses itself because a queue is full",
    "ray_serve_http_request_latency_ms": "from the proxy's first byte to its last, as a histogram",
    "ray_serve_deployment_processing_latency_ms": "within a replica, as a histogram, with waits for place and load",
    "ray_serve_deployment_queued_queries": "requests that wait in a proxy or the ingress for a replica",
    "ray_serve_replica_processing_queries": "requests that a replica has taken, waiting ones too",
    "ray_serve_deployment_replica_healthy": "1 for each replica that answers its health check",
}
"""Of Ray Serve 2.60; a test on Ray finds each of them beside ours."""

_INTRODUCTION = """\
# Metrics, logs, traces

This page is made from `ray_model_serving/contract/metrics.py`; `make golden` writes it anew.

## Metrics

Each node's Ray agent exports them for Prometheus. Every one has the labels `deployment` (the model's name, or
`Ingress` in an application with several), `application` and `replica`, which Ray Serve adds, and Ray's own
(`WorkerId`, `NodeAddress`, `SessionName` and others). Ours are those below: each has a closed set of values, and no
request, object or variant is ever one. `replica` and `WorkerId` change with each new process: gauges of one that is
gone leave the export within seconds, its counters stay until the node's agent ends, so sum over `deployment` and let
Prometheus drop the two labels where replicas come and go by the thousands.
"""
_FOLLOWING = """\
## Following a request

1. Every answer has the header `X-Request-ID`: the caller's, or one that Serve made. Every error document has the same
   as `error.request_id`. One that is longer than 128 characters, or has others than printable ASCII without blanks,
   is replaced: Serve's proxy still sends back what came, and the replacement stands in `error.request_id`, before it
   in a header of its own, and in the log; only Serve's own record in the first process has what came.
   (Serve answers one that is no UTF-8 with a 500 of its own.)
2. The log has it as `request_id`, in the ingress and in the replica alike: Serve's own record of each request with
   status and milliseconds, and ours with what happened.
3. `reason` of `request_refused` is the label of `model_requests_rejected_total`; with traces on, `trace_id` is the
   trace.

## Logs

The log files of replicas (`/tmp/ray/session_latest/logs/serve/replica_*.log` in the pod) have one JSON object a line:
a deployment's `logging_config` is part of its options. What Serve repeats on stderr is text.

| field | what |
| --- | --- |
| `model`, `snapshot_id`, `phase` | the model, what is loaded, and what a load is doing; null where there is none |
| `application`, `deployment`, `replica` | who wrote it; Serve writes `deployment` as `<application>_<deployment>` |
| `request_id`, `trace_id` | of the request that it is about |
| `event` | one of those below; Serve's own records and the model class's `print` have none |

| event | level | what, and its other fields |
| --- | --- | --- |
| `load_phase` | info | a phase begins: `phase`, `phase_before`, `seconds_before` |
| `load_ready` | info | the model is loaded and warm: `seconds` and `bytes` of each phase and source |
| `load_failed` | error | with the cause: `permanent`, `attempts` |
| `variant_unloaded` | info | a variant makes room for another |
| `request_refused` | warning | `reason`, `kind`, `status`; an error with the traceback where the model failed |
| `request_slow` | warning | over half of `request_deadline_s`: `seconds`, and `stages` with the seconds of each |
| `requests_refused`, `requests_slow` | warning | how many more of a `reason` came within 10 s: `count` |

Of each reason the first refusal is told, then only their number every 10 s until none comes: a flood does not fill
the disk. The other ones are still in Serve's own record of each request. Inputs are not logged: of what a caller did
wrong only the kind. The traceback of a failing model may quote a value; that is the model class's text.

## Traces

With `trace_endpoint` (`serving.trace_endpoint` in a stack file) spans go to `<trace_endpoint>/v1/traces` as OTLP over
HTTP; the image has what that needs (extra `[traces]`), and an application without it is refused when it is deployed.
Without an endpoint nothing of OpenTelemetry is imported.

- `request`, below the caller's span where the request has a W3C `traceparent`: in the ingress, and below it in the
  replica. Below that `queue`, `body`, `load`, `batch_wait` and `predict`. Attributes: `request_id`,
  `http.response.status_code`, `reason`.
- `load`, a trace of its own, with a span for each phase and `snapshot_id`.
- The resource is the replica: `service.name` (the model, or `Ingress`), `application`, `deployment`, `replica`.

Spans leave from a queue of 2048 in a thread of their own; what does not fit, or is not taken within 2 s, is dropped.
A collector that is slow or away holds no request, and is told in the log once a minute. `OTEL_TRACES_SAMPLER` and
`OTEL_EXPORTER_OTLP_HEADERS` in the pods' environment are honoured; the caller's decision not to sample is too.
"""


def metrics_page() -> str:
    """The page as Markdown."""
    return "\n".join([_INTRODUCTION, *_table(), *_rays(), _FOLLOWING])


def _table() -> Iterator[str]:
    yield "| name | type | unit | labels | what | what to do |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for metric in metrics.ALL:
        cells = (
            f"`ray_{metric.name}`",
            metric.type.value,
            metric.unit,
            _labels(metric),
            metric.description,
            metric.advice,
        )
        yield f"| {' | '.join(cells)} |"
    yield ""


def _labels(metric: Metric) -> str:
    values = ", ".join(f"`{value}`" for value in metric.label_values)
    return f"`{metric.label}`: {values}" if metric.label else ""


def _rays() -> Iterator[str]:
    yield "Requests, their latency and queues are Ray Serve's to count; ours do not repeat them:\n"
    yield "| name | what |"
    yield "| --- | --- |"
    for name, what in RAYS_METRICS.items():
        yield f"| `{name}` | {what} |"
    yield ""
