"""The emulator of AWS as tests use it: clients and uploads."""

import functools
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import boto3
from botocore.config import Config

from demo.emulator import emulator

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


@dataclass(frozen=True)
class S3Emulator:
    """A running emulator."""

    endpoint_url: str

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
    """Start the emulator on a free port, wait until it answers, and stop it on every way out."""
    with emulator() as url:
        yield S3Emulator(endpoint_url=url)
