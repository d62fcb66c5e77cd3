"""An S3 (and STS) server on loopback, in a process of its own: ministack, which keeps objects in memory."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from typing import IO

_READY_WITHIN_S = 30.0
_END_WITHIN_S = 5.0
_POLL_S = 0.05
# A port that was free a moment ago may be taken when the server asks for it.
_PORTS_TO_TRY = 3
_SETTINGS = {
    "BIND_HOST": "127.0.0.1",
    "SERVICES": "s3,sts",
    # Otherwise it also listens on port 8883 of every address.
    "IOT_MTLS_ENABLED": "0",
    "SFTP_ENABLED": "0",
    "S3_PERSIST": "0",
    "LOG_LEVEL": "WARNING",
}


class EmulatorError(Exception):
    """The emulator did not start; the text has the end of its log."""


@contextlib.contextmanager
def emulator(preferred_port: int = 0) -> Generator[str]:
    """Run it on ``preferred_port`` where that is free, else on any; yields its URL and ends it on every way out."""
    with tempfile.TemporaryFile() as log:
        process, url = _start(preferred_port, log)
        try:
            yield url
        finally:
            _end(process)


def free_port(preferred: int = 0) -> int:
    """``preferred`` where nothing listens there on loopback, else a port that the kernel picks."""
    for port in (preferred, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return probe.getsockname()[1]
    raise EmulatorError("the machine has no free port on the loopback address")


def _start(preferred_port: int, log: IO[bytes]) -> tuple["subprocess.Popen[bytes]", str]:
    for _ in range(_PORTS_TO_TRY):
        port = free_port(preferred_port)
        url = f"http://127.0.0.1:{port}"
        process = _launch(port, log)
        try:
            if _answers(process, url):
                return process, url
        except BaseException:
            _end(process)
            raise
        _end(process)
    log.seek(0)
    text = log.read()[-2000:].decode(errors="replace")
    raise EmulatorError(f"ministack did not start within {_READY_WITHIN_S:g} s: {text}")


def _launch(port: int, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    # A session of its own: Ctrl-C in the terminal reaches this process alone, which then ends the emulator.
    return subprocess.Popen(
        [sys.executable, "-m", "ministack"],
        env={**os.environ, **_SETTINGS, "GATEWAY_PORT": str(port)},
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip


def _answers(process: "subprocess.Popen[bytes]", url: str) -> bool:
    """True once it answers; False when it ended or the deadline passed."""
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{url}/_ministack/health", timeout=1),  # noqa: S310 (our own address)
        ):
            return True
        time.sleep(_POLL_S)
    return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_END_WITHIN_S)
