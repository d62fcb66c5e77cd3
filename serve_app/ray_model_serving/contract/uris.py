"""Where a model lives: ``s3://bucket/prefix/`` in an object store, ``file:///directory/`` on disk or in the image."""

import re
from dataclasses import dataclass

from ray_model_serving.contract.errors import ModelServingError

# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html (read 2026-11)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class BadUriError(ModelServingError):
    """A model URI that is neither ``s3://bucket/prefix/`` nor ``file:///directory/``; ``rule`` is what it breaks."""

    kind = "bad_uri"

    def __init__(self, message: str, *, hint: str = "write s3://bucket/prefix/ or file:///directory/") -> None:
        super().__init__(message, hint=hint)
        self.rule = message.partition(", ")[2]


@dataclass(frozen=True)
class S3Uri:
    """``prefix`` ends with a slash, so that ``llm/v1`` never reaches ``llm/v10``."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


@dataclass(frozen=True)
class FileUri:
    """An absolute directory."""

    path: str

    def __str__(self) -> str:
        return f"file://{self.path}"


def parse_model_uri(text: str) -> S3Uri | FileUri:
    """Read a model URI. Raises :class:`BadUriError` with what was given and the rule."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("s3", "file"):
        raise BadUriError(f"got {text!r}, a model URI starts with s3:// or file://")
    if "\0" in text or ".." in rest.split("/"):
        raise BadUriError(f"got {text!r}, a model URI has no '..' segment and no NUL")
    if scheme == "file":
        if not rest.startswith("/"):
            raise BadUriError(f"got {text!r}, a file URI has three slashes and an absolute path")
        return FileUri(path=rest)
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise BadUriError(f"got {text!r}, {bucket!r} is not a bucket name")
    if not prefix.strip("/"):
        raise BadUriError(f"got {text!r}, a model has a prefix of its own in the bucket")
    return S3Uri(bucket=bucket, prefix=f"{prefix.rstrip('/')}/")
