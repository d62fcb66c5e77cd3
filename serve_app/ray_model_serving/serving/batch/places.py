"""Folders of records, in S3 or on disk: list, read, publish whole files, remove."""

import json
import os
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray_model_serving.contract.uris import BadUriError
from ray_model_serving.serving.batch.plan import ENDINGS, STATE, InputFile
from ray_model_serving.store.retries import code_of
from ray_model_serving.store.s3_errors import translate

_STAGING = f"{STATE}staging"


class Place:
    """One folder. ``prefix`` is a directory's path, or what keys of ``bucket`` begin with; both end with a slash."""

    def __init__(self, uri: str, endpoint_url: str | None) -> None:
        self.uri = uri
        scheme, _, rest = uri.partition("://")
        if scheme not in ("s3", "file") or not rest.strip("/") or ".." in rest.split("/"):
            raise BadUriError(f"got {uri!r}, must be s3://bucket/prefix or file:///path")
        self.bucket, _, path = rest.partition("/") if scheme == "s3" else ("", "", rest)
        if scheme == "file" and not path.startswith("/"):
            raise BadUriError(f"got {uri!r}, a file URI has three slashes and an absolute path")
        self.only: str | None = None
        """The one file that the URI names, where it names one; the folder is then the one that it lies in."""
        if path.endswith(ENDINGS):
            path, _, self.only = path.rpartition("/")
        self.prefix = f"{path.rstrip('/')}/" if path.strip("/") else ""
        self._endpoint_url = endpoint_url or os.environ.get("AWS_ENDPOINT_URL")
        self._made: Any = None

    @property
    def _client(self) -> Any:
        if self._made is None:
            import boto3

            region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            self._made = boto3.client("s3", endpoint_url=self._endpoint_url, region_name=region)
        return self._made

    def inputs(self) -> list[InputFile]:
        """Files of records below the folder, or the one file that the URI names; sorted by name."""
        if self.only is not None:
            return [file for file in self._all(self.only) if file.name == self.only]
        return [file for file in self._all() if _is_data(file.name)]

    def names(self) -> list[str]:
        """Every file below the folder but the job's own state."""
        return [file.name for file in self._all() if not file.name.startswith(STATE)]

    def records(self) -> dict[str, dict[str, Any]]:
        """The records of earlier runs by the name of their input."""
        found: dict[str, dict[str, Any]] = {}
        for file in self._all(f"{STATE}files/"):
            record = self.read_json(file.name)
            if record is not None:
                found[record["input"]["name"]] = record
        return found

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A document, or None where there is none."""
        if not self.bucket:
            path = Path(self.prefix + name)
            return json.loads(path.read_bytes()) if path.is_file() else None
        from botocore.exceptions import ClientError

        with self._typed(name):
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=self.prefix + name)
            except ClientError as error:
                if code_of(error) in ("NoSuchKey", "404"):
                    return None
                raise
            return json.loads(answer["Body"].read())

    def write_json(self, name: str, document: Mapping[str, Any]) -> None:
        with self.whole_file(name) as path:
            path.write_text(json.dumps(document, indent=2))

    def remove(self, name: str) -> None:
        if self.bucket:
            with self._typed(name):
                self._client.delete_object(Bucket=self.bucket, Key=self.prefix + name)
        else:
            Path(self.prefix + name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what a killed run left unfinished; the staging of S3 outputs is the node's temporary directory."""
        if not self.bucket:
            shutil.rmtree(self.prefix + _STAGING, ignore_errors=True)

    def open(self, name: str) -> Any:
        """A file to read from, seekable; Arrow's own, which does not read it whole."""
        from pyarrow import fs

        if not self.bucket:
            return fs.LocalFileSystem().open_input_file(self.prefix + name)
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        store = fs.S3FileSystem(endpoint_override=self._endpoint_url, region=region)
        return store.open_input_file(f"{self.bucket}/{self.prefix}{name}")

    @contextmanager
    def whole_file(self, name: str) -> Generator[Path]:
        """A local path to write to. What was written becomes visible at once at the end, and not after an error.

        Not Arrow's stream to S3: it completes the upload when a ``with`` ends by an error, half a file or not.
        """
        if self.bucket:
            with tempfile.TemporaryDirectory(prefix="ray-model-batch-") as folder:
                path = Path(folder) / "output"
                yield path
                from boto3.s3.transfer import S3Transfer

                with self._typed(name):
                    S3Transfer(self._client).upload_file(str(path), self.bucket, self.prefix + name)
            return
        staging, target = Path(self.prefix + _STAGING), Path(self.prefix + name)
        staging.mkdir(parents=True, exist_ok=True)
        number, staged = tempfile.mkstemp(dir=staging)
        os.close(number)
        path = Path(staged)
        try:
            yield path
            _sync(path)
            path.chmod(0o644)  # a temporary file is its owner's alone
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _typed(self, name: str) -> Generator[None]:
        """The typed errors of the store for what S3 answers."""
        from boto3.exceptions import S3UploadFailedError
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except S3UploadFailedError as error:
            # It wraps what S3 answered.
            raise translate(_cause(error), self.bucket, f"{self.uri}: {name}", lambda: None) from error
        except (BotoCoreError, ClientError) as error:
            raise translate(error, self.bucket, f"{self.uri}: {name}", lambda: None) from error

    def _all(self, below: str = "") -> list[InputFile]:
        if self.bucket:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=self.prefix + below
            )
            with self._typed(below):
                objects = [found for page in pages for found in page.get("Contents", [])]
            files = [
                InputFile(name=found["Key"][len(self.prefix) :], size_bytes=found["Size"], version=found["ETag"])
                for found in objects
                if not found["Key"].endswith("/")
            ]
        else:
            root, start = Path(self.prefix), Path(self.prefix + below)
            paths = [start] if start.is_file() else [path for path in start.rglob("*") if path.is_file()]
            files = [_local(path, root) for path in paths]
        return sorted(files, key=lambda file: file.name)


def _cause(error: Exception) -> Exception:
    return error.__context__ if isinstance(error.__context__, Exception) else error


def _local(path: Path, root: Path) -> InputFile:
    stat = path.stat()
    return InputFile(name=path.relative_to(root).as_posix(), size_bytes=stat.st_size, version=str(stat.st_mtime_ns))


def _is_data(name: str) -> bool:
    return name.endswith(ENDINGS) and not any(part.startswith(("_", ".")) for part in name.split("/"))


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
