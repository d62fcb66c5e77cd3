"""The store of the benchmarks: nginx on loopback sends the objects from memory, the front answers LIST and HEAD.

One endpoint for everyone, twice: with each connection capped, as S3 does, and without a cap.
"""

import base64
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from awscrt import checksums

from benchmarks.front import StoredObject, front_server

BUCKET = "bench"
CAP_MIB_S = 90
"""S3 gives one connection 85 to 90 MB/s:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-design-patterns.html"""

# nginx waits between chunks in whole milliseconds, rounded down, and never after the last one. With its defaults a
# range of 8 MiB passes at 115 MiB/s under a limit of 90, to the advantage of clients with small parts. 382 KiB every
# 4 ms, and what the timer adds, gives 90 for small and large ranges alike.
_CHUNK = "382k"
_LIMIT_RATE = "93m"
_START_S = 10.0
_DRAIN_S = 20.0
_LOG_S = 0.2  # nginx writes its line after the last byte, so a client may be a moment ahead of it
_READ_BYTES = 4 * 1024**2

_CONFIG = """
daemon off;
master_process off;
{user}
pid {root}/nginx.pid;
error_log {root}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    log_format counted '$request_method $uri $status $body_bytes_sent';
    access_log {root}/access.log counted;
    client_body_temp_path {root}/body;
    proxy_temp_path {root}/proxy;
    fastcgi_temp_path {root}/fastcgi;
    uwsgi_temp_path {root}/uwsgi;
    scgi_temp_path {root}/scgi;
    default_type application/octet-stream;
    sendfile on;
    sendfile_max_chunk {chunk};
    tcp_nodelay on;
    keepalive_requests 1000000;
    upstream front {{ server 127.0.0.1:{front}; keepalive 32; }}
    server {{ listen 127.0.0.1:{status}; access_log off; location / {{ stub_status; }} }}
    server {{ listen 127.0.0.1:{capped}; limit_rate {limit}; include {root}/store.conf; }}
    server {{ listen 127.0.0.1:{uncapped}; include {root}/store.conf; }}
}}
"""
_STORE = """
proxy_http_version 1.1;
proxy_set_header Connection "";
error_page 418 = @front;
location @front { proxy_pass http://front; }
location ~ ^/[^/]*/?$ { proxy_pass http://front; }
location / { root OBJECTS; if ($request_method != GET) { return 418; } }
"""


@dataclass(frozen=True, kw_only=True)
class Served:
    """One GET of object bytes, from nginx's log. ``body_bytes`` is what nginx gave to the socket."""

    key: str
    status: int
    body_bytes: int


@dataclass(frozen=True, kw_only=True)
class BenchStore:
    """A running store. ``capped_url`` and ``uncapped_url`` are endpoints for the same bucket."""

    capped_url: str
    uncapped_url: str
    pid: int
    root: Path
    status_url: str

    def endpoint(self, capped: bool) -> str:
        return self.capped_url if capped else self.uncapped_url

    def sent_bytes_now(self) -> int:
        """Bytes that nginx has written so far, of requests in progress too; only differences mean something."""
        fields = dict(line.split(": ") for line in Path(f"/proc/{self.pid}/io").read_text("ascii").splitlines())
        return int(fields["wchar"])

    def queued_bytes(self, *, capped: bool) -> int:
        """What lies in the socket buffers of both sides, sent by nginx and read by nobody."""
        port = int(self.endpoint(capped).rpartition(":")[2])
        total = 0
        for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]:
            # Format: proc_net_tcp; addresses, the state, then the queues, all in hexadecimal.
            _, local, remote, _, queues = line.split()[:5]
            sent, received = (int(text, 16) for text in queues.split(":"))
            if _port_of(local) == port:
                total += sent
            elif _port_of(remote) == port:
                total += received
        return total

    def mark(self) -> int:
        """A position in the log, for :meth:`served`."""
        return (self.root / "access.log").stat().st_size

    def served(self, since: int) -> list[Served]:
        """GETs of objects since ``since``, once no client is connected. Raises TimeoutError if one stays."""
        deadline = time.monotonic() + _DRAIN_S
        while self._connections() > 1:  # the one that asks
            if time.monotonic() > deadline:
                raise TimeoutError(f"a client is still connected to the store after {_DRAIN_S:g} s")
            time.sleep(0.05)
        return self._log(since)

    def logged_bytes(self, since: int) -> int:
        """Object bytes of requests that ended since ``since``, while clients may still be connected."""
        time.sleep(_LOG_S)
        return sum(one.body_bytes for one in self._log(since))

    def _log(self, since: int) -> list[Served]:
        with (self.root / "access.log").open("rb") as log:
            log.seek(since)
            return parse_log(log.read().decode())

    def _connections(self) -> int:
        with urllib.request.urlopen(self.status_url, timeout=5) as reply:
            return int(cast("bytes", reply.read()).split(b"\n", 1)[0].split(b":")[1])


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def parse_log(text: str) -> list[Served]:
    """GETs of objects in a log; listings and HEADs are left out."""
    found: list[Served] = []
    for line in text.splitlines():
        method, path, status, sent = line.split(" ")
        key = path.removeprefix("/").partition("/")[2]
        if method == "GET" and key:
            found.append(Served(key=key, status=int(status), body_bytes=int(sent)))
    return found


def stored_object(path: Path) -> StoredObject:
    """Reads the file once, for its checksum."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            value = cast("Any", checksums).crc64nvme(block, value)
    status = path.stat()
    return StoredObject(
        size_bytes=status.st_size,
        modified_s=int(status.st_mtime),
        crc64nvme=base64.b64encode(value.to_bytes(8, "big")).decode(),
    )


def nginx_binary(system_folders: str = "/usr/sbin:/usr/local/sbin") -> str:
    """nginx from PATH or ``system_folders``. Raises SystemExit with what to install where there is none."""
    found = shutil.which("nginx") or shutil.which("nginx", path=system_folders)
    if not found:
        raise SystemExit("the benchmarks need nginx as the store: apt-get install nginx-light")
    return found


@contextmanager
def bench_store(objects_root: Path) -> Generator[BenchStore]:
    """Serve every file below ``objects_root`` as an object of the bucket; nginx is gone at the end on every way out."""
    bucket_root = objects_root / BUCKET
    objects: Mapping[str, StoredObject] = {
        path.relative_to(bucket_root).as_posix(): stored_object(path)
        for path in sorted(bucket_root.rglob("*"))
        if path.is_file()
    }
    with tempfile.TemporaryDirectory(prefix="bench-nginx-") as temporary, front_server(objects, BUCKET) as front_port:
        root = Path(temporary)
        capped, uncapped, status = free_ports(3)
        owner = pwd.getpwuid(objects_root.stat().st_uid).pw_name
        config = _CONFIG.format(
            root=root, chunk=_CHUNK, front=front_port, status=status, capped=capped, uncapped=uncapped,
            limit=_LIMIT_RATE,
            user=f"user {owner};" if owner == "root" else "",
        )  # fmt: skip
        (root / "nginx.conf").write_text(config, encoding="utf-8")
        (root / "store.conf").write_text(_STORE.replace("OBJECTS", str(objects_root)), encoding="utf-8")
        process = subprocess.Popen(
            [nginx_binary(), "-p", str(root), "-c", str(root / "nginx.conf"), "-e", str(root / "error.log")]
        )
        try:
            _await_ports(process, (capped, uncapped, status), root)
            for key, stored in objects.items():
                _check_pinned(f"http://127.0.0.1:{uncapped}/{BUCKET}/{key}", stored)
            yield BenchStore(
                capped_url=f"http://127.0.0.1:{capped}",
                uncapped_url=f"http://127.0.0.1:{uncapped}",
                pid=process.pid,
                root=root,
                status_url=f"http://127.0.0.1:{status}/",
            )
        finally:
            process.terminate()
            try:
                process.wait(timeout=_DRAIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _check_pinned(url: str, stored: StoredObject) -> None:
    """Raises HTTPError unless nginx takes the ETag that HEAD tells, or every client that pins would fail."""
    request = urllib.request.Request(url, headers={"If-Match": stored.etag, "Range": "bytes=0-0"})
    with urllib.request.urlopen(request, timeout=5) as reply:
        reply.read()


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _await_ports(process: "subprocess.Popen[bytes]", ports: Iterable[int], root: Path) -> None:
    deadline = time.monotonic() + _START_S
    for port in ports:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    log = root / "error.log"
                    said = log.read_text(encoding="utf-8") if log.exists() else "nothing in its log"
                    raise SystemExit(f"nginx did not start: {said}") from None
                time.sleep(0.02)
