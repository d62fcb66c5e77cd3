"""A loopback HTTP proxy that records every request and can break any of them: what an emulator never does by itself."""

import http.client
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_UPSTREAM_TIMEOUT_S = 30.0
_CHUNK_BYTES = 64 * 1024
# Headers that belong to one connection and not to the message.
_HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive", "date", "server"})


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request as it came in. ``number`` counts from 0 over all requests of the proxy."""

    number: int
    method: str
    path: str
    """Without the query, decoded: ``/bucket/key``."""
    query: str
    headers: dict[str, str]
    body: bytes

    @property
    def is_object_get(self) -> bool:
        """A GET of an object's bytes, as opposed to a listing."""
        return self.method == "GET" and self.path.count("/") > 1 and bool(self.path.split("/", 2)[2])

    @property
    def range_start(self) -> int:
        """First byte of the requested range, or 0."""
        return int(self.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")[0])


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What goes back. ``cut_at``: that many bytes of the body, then the connection closes. ``pace``: called with the
    bytes of the body that went out so far, before each chunk of 64 KiB; it may wait."""

    status: int
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    cut_at: int | None = None
    pace: Callable[[int], None] | None = None


Forward = Callable[[], Answer]
Rule = Callable[[Request, Forward], Answer | None]
"""Gets a request and a way to ask the server behind; returns the answer, or None to drop the connection."""


def answer(status: int, code: str = "", message: str = "injected", **headers: str) -> Rule:
    """An S3 error without asking the server; an underscore in a header's name stands for a hyphen."""
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    all_headers = {
        "content-type": "application/xml",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return lambda request, forward: Answer(status=status, headers=all_headers, body=text.encode())


def throttled(bytes_per_s: float) -> Rule:
    """Each body no faster than this."""

    def rule(request: Request, forward: Forward) -> Answer:
        started = time.monotonic()

        def pace(sent: int) -> None:
            time.sleep(max(0.0, started + sent / bytes_per_s - time.monotonic()))

        return replace(forward(), pace=pace)

    return rule


def stalled(at: int, until: threading.Event) -> Rule:
    """Bodies that stop after ``at`` bytes, with the connection open, until the event."""

    def pace(sent: int) -> None:
        if sent >= at:
            until.wait(_UPSTREAM_TIMEOUT_S)

    return lambda request, forward: replace(forward(), pace=pace)


def once_before(number: int, act: Callable[[], object], *, only: Callable[[Request], bool]) -> Rule:
    """Run ``act`` once, before the ``number``-th request (from 0) that ``only`` selects; forward everything."""
    seen = [0]
    lock = threading.Lock()

    def rule(request: Request, forward: Forward) -> Answer:
        if only(request):
            with lock:
                if seen[0] == number:
                    act()
                seen[0] += 1
        return forward()

    return rule


def times(count: int, rule: Rule, *, only: Callable[[Request], bool] = lambda request: True) -> Rule:
    """Apply ``rule`` to the first ``count`` requests that ``only`` selects; forward everything else."""
    left = [count]
    lock = threading.Lock()

    def limited(request: Request, forward: Forward) -> Answer | None:
        with lock:
            hit = left[0] > 0 and only(request)
            left[0] -= hit
        return rule(request, forward) if hit else forward()

    return limited


@dataclass
class RecordingProxy:
    """A running proxy. ``rule`` may be replaced at any time; ``served`` has each request with what it got."""

    endpoint_url: str
    upstream: str
    rule: Rule = lambda request, forward: forward()
    served: list[tuple[Request, Answer | None]] = field(default_factory=list[tuple[Request, Answer | None]])
    _count: int = 0
    _object_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def requests(self, method: str | None = None) -> list[Request]:
        """Requests so far, of one method or all."""
        return [request for request, _ in list(self.served) if method in (None, request.method)]

    def object_gets(self) -> list[Request]:
        """GETs of object bytes so far."""
        return [request for request in self.requests("GET") if request.is_object_get]

    def object_bytes(self) -> int:
        """Bytes of objects that went out so far, those of requests in progress too."""
        return self._object_bytes

    def gets_by_key(self) -> Counter[str]:
        """How often each object's bytes were asked for, by path."""
        return Counter(request.path for request in self.object_gets())

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        """Serve one request (called by the server)."""
        length = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(length) if length else b""
        with self._lock:
            number, self._count = self._count, self._count + 1
        split = urllib.parse.urlsplit(handler.path)
        request = Request(
            number=number,
            method=handler.command,
            path=urllib.parse.unquote(split.path),
            query=split.query,
            headers={name.lower(): value for name, value in handler.headers.items()},
            body=body,
        )
        result = self.rule(request, lambda: self._forward(handler, body))
        self.served.append((request, result))
        counts = bool(result and request.is_object_get and result.status in (200, 206))
        _send(handler, result, self._count_bytes if counts else lambda _: None)

    def _count_bytes(self, length: int) -> None:
        with self._lock:
            self._object_bytes += length

    def _forward(self, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
        host = urllib.parse.urlsplit(self.upstream).netloc
        connection = http.client.HTTPConnection(host, timeout=_UPSTREAM_TIMEOUT_S)
        try:
            headers = {name: value for name, value in handler.headers.items() if name.lower() not in _HOP_BY_HOP}
            connection.request(handler.command, handler.path, body=body or None, headers=headers)
            response = connection.getresponse()
            content = response.read()
            given = {name.lower(): value for name, value in response.getheaders()}
            if handler.command == "HEAD":
                return Answer(
                    status=response.status, headers={"x-head-length": given.get("content-length", "0"), **given}
                )
            return Answer(status=response.status, headers=given, body=content)
        finally:
            connection.close()


def _send(handler: BaseHTTPRequestHandler, result: Answer | None, count: Callable[[int], None]) -> None:
    if result is None:
        handler.close_connection = True
        return
    handler.send_response(result.status)
    for name, value in result.headers.items():
        if name not in _HOP_BY_HOP and name != "x-head-length":
            handler.send_header(name, value)
    is_head = handler.command == "HEAD"
    handler.send_header(
        "Content-Length", result.headers.get("x-head-length", "0") if is_head else str(len(result.body))
    )
    if result.cut_at is not None:
        handler.send_header("Connection", "close")
        handler.close_connection = True
    handler.end_headers()
    if not is_head:
        _send_body(handler, result, count)


def _send_body(handler: BaseHTTPRequestHandler, result: Answer, count: Callable[[int], None]) -> None:
    body = memoryview(result.body)[: result.cut_at]
    for start in range(0, len(body), _CHUNK_BYTES):
        if result.pace:
            result.pace(start)
        chunk = body[start : start + _CHUNK_BYTES]
        count(len(chunk))
        handler.wfile.write(chunk)


@contextmanager
def recording_proxy(upstream: str) -> Generator[RecordingProxy]:
    """A proxy on a free loopback port, in threads of this process; gone at the end on every way out."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            try:
                proxy.handle(self)
            except (ConnectionError, TimeoutError):
                self.close_connection = True  # the client, or the server behind, went away

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy = RecordingProxy(endpoint_url=f"http://127.0.0.1:{server.server_address[1]}", upstream=upstream)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()
