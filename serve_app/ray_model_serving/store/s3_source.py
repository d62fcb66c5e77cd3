"""S3 as a source of models: the client, who it acts as, and the requests that a fetch is made of."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVar

from ray_model_serving.contract.cache_format import Manifest
from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.uris import S3Uri
from ray_model_serving.store.identity import caller_arn, caller_arn_or_none, check_identity
from ray_model_serving.store.parts import Part
from ray_model_serving.store.ranges import RangeBody, open_range
from ray_model_serving.store.resolve import resolve_s3
from ray_model_serving.store.retries import call, log_in_words
from ray_model_serving.store.s3_client import RenewedClient, make_client
from ray_model_serving.store.s3_errors import translate

T = TypeVar("T")


class S3Source:
    """Requests against S3 or a compatible store, each bounded by a deadline (``time.monotonic``), with typed errors."""

    def __init__(self, *, endpoint_url: str | None, connections: int) -> None:
        self._endpoint_url = endpoint_url
        self._connections = connections
        log_in_words()
        self._s3 = RenewedClient(lambda: make_client("s3", endpoint_url, connections))

    def resolve(self, uri: S3Uri, include: Sequence[str], exclude: Sequence[str], deadline: float) -> Manifest:
        """What is under the prefix now."""
        return resolve_s3(
            lambda operation: call(lambda: self._s3.ask(operation), deadline),
            uri,
            include,
            exclude,
            connections=self._connections,
            translate=lambda error, where: self._translate(error, uri.bucket, where),
        )

    def open_range(self, uri: S3Uri, part: Part) -> RangeBody:
        """One attempt at one range; raises botocore's errors, for :meth:`translate_key`."""
        return self._s3.ask(lambda client: open_range(client, uri.bucket, part))

    def translate_key(self, uri: S3Uri, error: Exception, key: str) -> ModelServingError:
        """The typed error for a failure of one object."""
        return self._translate(error, uri.bucket, f"s3://{uri.bucket}/{key}")

    def read_start(self, uri: S3Uri, path: str, length: int, deadline: float) -> bytes:
        """The first ``length`` bytes of one object."""
        key = f"{uri.prefix}{path}"

        def read(client: Any) -> bytes:
            answer: Any = client.get_object(Bucket=uri.bucket, Key=key, Range=f"bytes=0-{length - 1}")
            body = answer["Body"]
            try:
                return bytes(body.read(length))
            finally:
                body.close()

        try:
            return call(lambda: self._s3.ask(read), deadline)
        except Exception as error:  # _translate raises again what is not the store's
            raise self.translate_key(uri, error, key) from error

    def check_identity(self, expected_arn: str, deadline: float) -> None:
        """Raises :class:`WrongIdentityError` unless this process acts as ``expected_arn``."""
        try:
            actual = call(lambda: caller_arn(self._sts), deadline)
        except Exception as error:  # _translate raises again what is not the store's
            raise self._translate(error, "", "sts:GetCallerIdentity") from error
        check_identity(actual, expected_arn)

    @cached_property
    def _sts(self) -> Any:
        return make_client("sts", self._endpoint_url, 1)

    @cached_property
    def _caller(self) -> str | None:
        return caller_arn_or_none(self._sts)

    def _translate(self, error: Exception, bucket: str, where: str) -> ModelServingError:
        return translate(error, bucket, where, lambda: self._caller)
