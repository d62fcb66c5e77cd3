"""An OpenTelemetry collector on loopback that keeps the spans that it is sent."""

import gzip
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


@dataclass(frozen=True)
class Span:
    """One span as it came over the wire; ids are hexadecimal, and ``resource`` is that of its process."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    seconds: float
    failed: bool
    attributes: dict[str, str]
    resource: dict[str, str]


class Collector:
    """Spans in the order of their arrival."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._news = threading.Condition()
        self.url = ""
        self.paths: set[str] = set()

    def add(self, path: str, request: ExportTraceServiceRequest) -> None:
        with self._news:
            self.paths.add(path)
            for group in request.resource_spans:
                resource = _texts(group.resource.attributes)
                for scope in group.scope_spans:
                    for span in scope.spans:
                        self._spans.append(
                            Span(
                                name=span.name,
                                trace_id=span.trace_id.hex(),
                                span_id=span.span_id.hex(),
                                parent_id=span.parent_span_id.hex(),
                                seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                                failed=span.status.code == span.status.STATUS_CODE_ERROR,
                                attributes=_texts(span.attributes),
                                resource=resource,
                            )
                        )
            self._news.notify_all()

    def wait_for(self, enough: Callable[[list[Span]], bool], timeout_s: float = 20.0) -> list[Span]:
        """All spans, once they are enough. Fails with what came so far."""
        with self._news:
            came = self._news.wait_for(lambda: enough(self._spans), timeout_s)
            assert came, f"these spans came within {timeout_s} s: {[span.name for span in self._spans]}"
            return list(self._spans)


def _texts(attributes: "list[KeyValue] | object") -> dict[str, str]:
    found: dict[str, str] = {}
    for item in attributes:  # pyright: ignore[reportGeneralTypeIssues] - a repeated field
        value = item.value
        found[item.key] = str(getattr(value, value.WhichOneof("value")))
    return found


@contextmanager
def collector() -> Generator[Collector]:
    """Listens until the end of the block."""
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            kept.add(self.path, ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
