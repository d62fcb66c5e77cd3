"""The demo's object store, with a model in it."""

import contextlib
import os
import urllib.parse
from collections.abc import Generator
from pathlib import Path

import boto3

from demo.emulator import emulator
from demo.slow_link import slow_link
from ray_model_serving.contract.uris import S3Uri

# A small node's share of a busy network: a download that takes seconds, as it does for real models.
LINK_BYTES_PER_S = 30e6


@contextlib.contextmanager
def object_store(preferred_port: int) -> Generator[str]:
    """An S3 API on loopback; yields its URL. AWS clients of the processes started from here use it by a slow link."""
    with emulator(preferred_port) as endpoint_url, slow_link(_port_of(endpoint_url), LINK_BYTES_PER_S) as slow_port:
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{slow_port}"
        try:
            yield endpoint_url
        finally:
            del os.environ["AWS_ENDPOINT_URL"]


def _port_of(url: str) -> int:
    port = urllib.parse.urlsplit(url).port
    assert port is not None  # the emulator's URL names one
    return port


def upload(endpoint_url: str, folder: Path, uri: S3Uri) -> int:
    """Make the bucket and put every file of ``folder`` under the prefix. Returns the bytes."""
    client = boto3.client("s3", endpoint_url=endpoint_url)
    client.create_bucket(Bucket=uri.bucket)
    size_bytes = 0
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        key = f"{uri.prefix}{file.relative_to(folder).as_posix()}"
        # CRC32, since the emulator computes S3's own CRC64NVME in plain Python.
        client.put_object(Bucket=uri.bucket, Key=key, Body=file.read_bytes(), ChecksumAlgorithm="CRC32")
        size_bytes += file.stat().st_size
    return size_bytes
