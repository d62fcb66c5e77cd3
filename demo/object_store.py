"""The demo's object store, with a model in it."""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

import boto3

from demo.emulator import emulator
from ray_model_serving.contract.uris import S3Uri


@contextlib.contextmanager
def object_store(preferred_port: int) -> Generator[str]:
    """An S3 API on loopback; AWS clients of this process and of those that it starts use it."""
    with emulator(preferred_port) as endpoint_url:
        os.environ["AWS_ENDPOINT_URL"] = endpoint_url
        try:
            yield endpoint_url
        finally:
            del os.environ["AWS_ENDPOINT_URL"]


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
