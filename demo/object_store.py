"""A real S3 API on loopback, with a model in it."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path

import boto3

from ray_model_serving.contract.uris import S3Uri

_READY_WITHIN_S = 30.0
_POLL_S = 0.1
_END_S = 5.0


@contextlib.contextmanager
def object_store(port: int, log: Path) -> Generator[str]:
    """Run the emulator on 127.0.0.1 only; yields its endpoint URL and points AWS clients of this process at it."""
    endpoint_url = f"http://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "LOG_LEVEL": "ERROR",
    }
    with log.open("wb") as output:
        # A session of its own: Ctrl-C in the terminal reaches this process alone, which then ends the emulator.
        process = subprocess.Popen(
            [sys.executable, "-m", "ministack"],
            env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        _wait_until_ready(process, endpoint_url, log)
        os.environ["AWS_ENDPOINT_URL"] = endpoint_url
        yield endpoint_url
    finally:
        os.environ.pop("AWS_ENDPOINT_URL", None)
        process.terminate()
        try:
            process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def upload(endpoint_url: str, folder: Path, uri: S3Uri) -> int:
    """Make the bucket and put every file of ``folder`` under the prefix. Returns the bytes."""
    client = boto3.client("s3", endpoint_url=endpoint_url)
    client.create_bucket(Bucket=uri.bucket)
    size_bytes = 0
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        key = f"{uri.prefix}{file.relative_to(folder).as_posix()}"
        client.put_object(Bucket=uri.bucket, Key=key, Body=file.read_bytes(), ChecksumAlgorithm="CRC32")
        size_bytes += file.stat().st_size
    return size_bytes


def _wait_until_ready(process: "subprocess.Popen[bytes]", endpoint_url: str, log: Path) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{endpoint_url}/health", timeout=1):  # noqa: S310
            return
        time.sleep(_POLL_S)
    raise RuntimeError(f"the object store did not start at {endpoint_url}: {log.read_text(errors='replace')[-2000:]}")
