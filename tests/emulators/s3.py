"""An S3 (and STS) server on a free loopback port, in a process of its own: ministack, which keeps objects in memory."""

import functools
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import boto3
from botocore.config import Config

_START_DEADLINE_S = 30.0
_STOP_DEADLINE_S = 5.0
# A port that was free a moment ago may be taken when the server asks for it.
_PORTS_TO_TRY = 3

# What every client of the emulator needs; it accepts any credentials.
ENVIRONMENT: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "emulator",
    "AWS_SECRET_ACCESS_KEY": "emulator",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


class EmulatorError(Exception):
    """The emulator did not start; the text has the end of its log."""


@dataclass(frozen=True)
class S3Emulator:
    """A running emulator."""

    endpoint_url: str
    pid: int

    def client(self, service: str = "s3") -> Any:
        """A boto3 client of it, for uploads and set-up."""
        return _client(self.endpoint_url, service)

    def upload(self, bucket: str, prefix: str, files: Mapping[str, bytes]) -> None:
        """Put files below ``prefix``; the bucket is made if it is missing.

        With boto3's default CRC32: the emulator checks a CRC64NVME in plain Python, at 3 MB/s.
        """
        client = self.client()
        client.create_bucket(Bucket=bucket)
        for name, content in files.items():
            client.put_object(Bucket=bucket, Key=f"{prefix}{name}", Body=content)


@functools.cache  # a client takes longer to make than to use
def _client(endpoint_url: str, service: str) -> Any:
    session = boto3.session.Session(
        aws_access_key_id=ENVIRONMENT["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
        region_name=ENVIRONMENT["AWS_REGION"],
    )
    config = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
    return cast("Any", session).client(service, endpoint_url=endpoint_url, config=config)


@contextmanager
def s3_emulator() -> Generator[S3Emulator]:
    """Start the emulator, wait until it answers, and stop it on every way out. Raises :class:`EmulatorError`."""
    with tempfile.TemporaryFile() as log:
        process, url = _start(log)
        try:
            yield S3Emulator(endpoint_url=url, pid=process.pid)
        finally:
            _stop(process)


def _start(log: Any) -> tuple[subprocess.Popen[bytes], str]:
    for _ in range(_PORTS_TO_TRY):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        process = _launch(port, log)
        try:
            if _wait_until_up(process, url):
                return process, url
        except BaseException:
            _stop(process)
            raise
        _stop(process)
    log.seek(0)
    raise EmulatorError(f"ministack did not start within {_START_DEADLINE_S:g} s: {log.read()[-2000:].decode()}")


def _launch(port: int, log: Any) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "s3,sts",
        "IOT_MTLS_ENABLED": "0",  # otherwise it also listens on 0.0.0.0:8883
        "SFTP_ENABLED": "0",
        "S3_PERSIST": "0",
        "LOG_LEVEL": "WARNING",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "ministack"], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )


def _wait_until_up(process: subprocess.Popen[bytes], url: str) -> bool:
    """True once it answers; False when it ended or the deadline passed."""
    deadline = time.monotonic() + _START_DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/_ministack/health", timeout=1):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_DEADLINE_S)


def free_port() -> int:
    """A loopback port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
