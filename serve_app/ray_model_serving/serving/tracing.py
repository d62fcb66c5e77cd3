"""Traces over OTLP/HTTP, where an endpoint is set. Nothing of OpenTelemetry is imported before that.

Spans leave in a thread of their own, from a queue that drops what it has no room for: a collector that is slow or away
costs a request nothing. ``OTEL_TRACES_SAMPLER`` and ``OTEL_EXPORTER_OTLP_HEADERS`` are honoured, as in any program.
"""

import importlib.util
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.serving.requests import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.trace import Span

TRACE_HEADERS = ("traceparent", "tracestate")
# Of W3C Trace Context: 55 characters, and 512 that everybody has to pass on; a longer one is no one's.
_MOST_CHARACTERS = 512
_EXPORTER = "opentelemetry.exporter.otlp.proto.http"
# A span is about 500 bytes: one MiB at most waits, and a collector gets two seconds for each half of it.
_QUEUE = 2048
_BATCH = 512
_EVERY_S = 2.0
_EXPORT_TIMEOUT_S = 2.0
# What a replica that ends waits for its last spans.
_FLUSH_S = 1.0


# The exporter tells of each try; of a collector that is away for a day that would be all that a log has.
_COMPLAINT_EVERY_S = 60.0


class TracesMissingError(ModelServingError):
    """An endpoint for traces is set, and the packages that would send them are not there."""

    kind = "traces_missing"


def check_available() -> None:
    """Raises :class:`TracesMissingError`. Imports nothing."""
    try:
        found = importlib.util.find_spec(_EXPORTER) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise TracesMissingError(
            f"trace_endpoint is set, and {_EXPORTER} is not installed",
            hint="install ray-model-serving[serve,traces] in the image, or leave trace_endpoint out",
        )


def carrier_of(headers: Mapping[str, str]) -> dict[str, str]:
    """The trace headers of a request; what is too long for one is left out."""
    found = {name: headers.get(name, "") for name in TRACE_HEADERS}
    return {name: value for name, value in found.items() if 0 < len(value) <= _MOST_CHARACTERS}


class Tracing:
    """The spans of one process. ``resource`` says whose they are: ``service.name`` and the like."""

    def __init__(self, endpoint: str, resource: Mapping[str, str]) -> None:
        check_available()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # Not the process's own provider: that one is Ray's and the model class's to set.
        self._provider = TracerProvider(resource=Resource.create(dict(resource)), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=_EXPORT_TIMEOUT_S)
        complaints = logging.getLogger(OTLPSpanExporter.__module__)
        if not any(isinstance(each, _Sparse) for each in complaints.filters):
            complaints.addFilter(_Sparse())
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                max_queue_size=_QUEUE,
                max_export_batch_size=_BATCH,
                schedule_delay_millis=_EVERY_S * 1000,
                export_timeout_millis=_EXPORT_TIMEOUT_S * 1000,
            )
        )
        self._tracer = self._provider.get_tracer("ray_model_serving")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, name: str, record: RequestRecord, carrier: Mapping[str, str]) -> "RequestTrace":
        """The span of a request, below the one that ``carrier`` names."""
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span(
            name,
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=record.started_ns,
            attributes={"request_id": record.request_id},
        )
        record.trace_id = f"{span.get_span_context().trace_id:032x}"
        record.carrier = self._carrier(span)
        return RequestTrace(self, span, record)

    def load(self, phases: Sequence[tuple[str, int, int]], attributes: Mapping[str, str], error: str | None) -> None:
        """A load that is over, with its phases: names, begins and ends in nanoseconds since the epoch."""
        if not phases:
            return
        span = self._tracer.start_span("load", start_time=phases[0][1], attributes=dict(attributes))
        self.children(span, phases)
        if error:
            _fail(span, error)
        span.end(phases[-1][2])

    def children(self, parent: "Span", spans: Sequence[tuple[str, int, int]]) -> None:
        """Spans that are over, below ``parent``."""
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(parent)
        for name, begun, ended in spans:
            self._tracer.start_span(name, context=context, start_time=begun).end(ended)

    def close(self) -> None:
        """Send what waits; returns after a second at most."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_FLUSH_S)

    def _carrier(self, span: "Span") -> dict[str, str]:
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=set_span_in_context(span))
        return carrier


class _Sparse(logging.Filter):
    """Lets a record through, and then none for a while."""

    def __init__(self) -> None:
        super().__init__()
        self._silent_until = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        del record
        now = time.monotonic()
        if now < self._silent_until:
            return False
        self._silent_until = now + _COMPLAINT_EVERY_S
        return True


class RequestTrace:
    """The open span of one request."""

    def __init__(self, tracing: Tracing, span: "Span", record: RequestRecord) -> None:
        self._tracing, self._span, self._record = tracing, span, record

    def end(self, status: int | None) -> None:
        """``status`` is None for a request whose caller was gone, or that failed outside of the model."""
        ended_ns = time.time_ns()
        self._tracing.children(self._span, self._record.spans(ended_ns))
        if self._record.reason:
            self._span.set_attribute("reason", self._record.reason)
        if status is None:
            self._span.set_attribute("cancelled", True)
        else:
            self._span.set_attribute("http.response.status_code", status)
            if status >= 500:
                _fail(self._span, self._record.reason or str(status))
        self._span.end(ended_ns)


def _fail(span: "Span", why: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, why))
