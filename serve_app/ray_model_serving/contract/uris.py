"""Where a model lives: ``s3://bucket/prefix/`` in an object store, ``file:///directory/`` on disk or in the image."""

import re
from dataclasses import dataclass

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.problems import show

# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html (read 2026-11)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class BadUriError(ModelServingError):
    """A model URI that is neither ``s3://bucket/prefix/`` nor ``file:///directory/``; ``rule`` is what it breaks."""

    kind = "bad_uri"

    def __init__(
        self, message: str, *, hint: str = "write s3://bucket/prefix/ or file:///directory/", rule: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.rule = rule

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.message, self.hint, self.rule))


def _rebuild(message: str, hint: str, rule: str) -> BadUriError:
    return BadUriError(message, hint=hint, rule=rule)


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
    rule = _broken_rule(text)
    if rule is not None:
        raise BadUriError(f"got {show(text)}, {rule}", rule=rule)
    scheme, _, rest = text.partition("://")
    if scheme == "file":
        return FileUri(path=rest)
    bucket, _, prefix = rest.partition("/")
    return S3Uri(bucket=bucket, prefix=f"{prefix.rstrip('/')}/")


def uri_problem(text: str) -> str | None:
    """What is wrong with a model URI, or None."""
    try:
        parse_model_uri(text)
    except BadUriError as error:
        return f"{error.rule}; {error.hint}"
    return None


def _broken_rule(text: str) -> str | None:
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("s3", "file"):
        return "a model URI starts with s3:// or file://"
    if ".." in rest.split("/"):
        return "a model URI has no '..' segment"
    if not text.isprintable():
        return "a model URI has no line breaks, control characters or others that do not print"
    if scheme == "file":
        if not rest.startswith("/"):
            return "a file URI has three slashes and an absolute path"
        return None if rest.strip("/") else "a model has a directory of its own, not the root"
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        return f"{bucket!r} is not a bucket name"
    return None if prefix.strip("/") else "a model has a prefix of its own in the bucket"
