"""A link to the object store at the speed of a network, so that a download lasts long enough to watch."""

import contextlib
import socket
import threading
import time
from collections.abc import Generator

_CHUNK_BYTES = 256 * 1024


class _Pace:
    """Lets bytes pass at a rate that all connections share."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def wait(self, size_bytes: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size_bytes / self._bytes_per_s
            pause_s = self._free_at - now
        time.sleep(pause_s)


@contextlib.contextmanager
def slow_link(target_port: int, bytes_per_s: float) -> Generator[int]:
    """Forwards a loopback port to another one; answers share ``bytes_per_s``. Yields the port."""
    pace = _Pace(bytes_per_s)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_accept, args=(server, target_port, pace), daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            # Closing alone would leave the thread in accept().
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket, target_port: int, pace: _Pace) -> None:
    with contextlib.suppress(OSError):  # the server was closed: the demo is over
        while True:
            client, _ = server.accept()
            upstream = socket.create_connection(("127.0.0.1", target_port))
            threading.Thread(target=_copy, args=(client, upstream, None), daemon=True).start()
            threading.Thread(target=_copy, args=(upstream, client, pace), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket, pace: _Pace | None) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            if pace:
                pace.wait(len(data))
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
