"""One S3 client per store, with the retries and the error texts in one place.

botocore's own retries are off: it repeats a cut body five times within 0.1 s and would multiply with ours.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import boto3
import stamina
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ResponseStreamingError,
    SSLError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from urllib3.exceptions import HTTPError

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.store.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    CredentialsError,
    ObjectReplacedError,
    StoreRefusedError,
    StoreUnavailableError,
)

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 20.0
_ATTEMPTS = 8
_LEAST_TIMEOUT_S = 0.001  # stamina takes 0 for a mistake; a passed deadline still allows one attempt
_TRANSIENT_CODES = {
    "SlowDown",
    "ServiceUnavailable",
    "InternalError",
    "RequestTimeout",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
}
_CREDENTIAL_CODES = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "InvalidIdentityToken",
    "RequestTimeTooSkewed",
    "TokenRefreshRequired",
}


class ShortBodyError(Exception):
    """An answer that ended early or is not the range that was asked for; the part is read again."""


# Names that do not resolve, refused and cut connections, time-outs; urllib3's own errors come out of a body.
_TRANSIENT_ERRORS = (
    BotoConnectionError,
    HTTPClientError,
    ResponseStreamingError,
    IncompleteReadError,
    HTTPError,
    ShortBodyError,
    ConnectionError,
    TimeoutError,
)


def make_client(service: str, endpoint_url: str | None, connections: int) -> Any:
    """A boto3 client. Without ``endpoint_url``, AWS_ENDPOINT_URL and the profile decide, as everywhere in AWS tools."""
    config = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        max_pool_connections=connections,
        # A range carries no checksum of its own; whole files are checked by us, against the object's.
        response_checksum_validation="when_required",
        # Custom endpoints are rarely reachable under bucket.host.
        s3={"addressing_style": "path" if endpoint_url else "auto"},
    )
    session = boto3.session.Session()
    region = session.region_name or "us-east-1"  # S3 sends the right region back, and the client follows
    return cast("Any", session).client(service, endpoint_url=endpoint_url, region_name=region, config=config)


def call(operation: Callable[[], T], deadline: float) -> T:
    """Run one request, again with jittered back-off while its failure is transient, until ``deadline`` (monotonic).

    Raises what :func:`translate` has no part in: the last error as it came.
    """
    for attempt in stamina.retry_context(
        on=_may_retry(deadline), attempts=_ATTEMPTS, timeout=max(_LEAST_TIMEOUT_S, deadline - time.monotonic()),
        wait_initial=0.1, wait_max=5.0, wait_jitter=0.5,
    ):  # fmt: skip
        with attempt:
            return operation()
    raise AssertionError("unreachable: the last attempt returned or raised")


def _may_retry(deadline: float) -> Callable[[Exception], bool]:
    return lambda error: is_transient(error) and time.monotonic() < deadline


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed in a moment."""
    if isinstance(error, ClientError):
        return code_of(error) in _TRANSIENT_CODES or status_of(error) in (429, 500, 502, 503, 504)
    return isinstance(error, _TRANSIENT_ERRORS) and not isinstance(error, SSLError)


def status_of(error: ClientError) -> int:
    return int(cast("Any", error.response).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: ClientError) -> str:
    return str(cast("Any", error.response).get("Error", {}).get("Code", ""))


def translate(error: Exception, bucket: str, where: str, caller: Callable[[], str | None]) -> ModelServingError:
    """The typed error for a failure on ``where``; ``caller`` is asked for the identity only where it helps."""
    if isinstance(error, ModelServingError):
        return error
    if isinstance(error, ClientError):
        return _translate_answer(error, bucket, where, caller)
    if isinstance(error, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError | TokenRetrievalError):
        return CredentialsError(
            f"{where}: no usable AWS credentials: {error}",
            hint="give the service account a role (IRSA or Pod Identity), or set AWS_PROFILE",
        )
    if is_transient(error):
        return StoreUnavailableError(
            f"{where}: the store did not answer well within {_ATTEMPTS} attempts or the deadline; last: {error}",
            hint="check the network path to the store (VPC endpoint, security group, endpoint URL)",
        )
    if isinstance(error, BotoCoreError):
        return StoreRefusedError(f"{where}: {error}", hint="check the endpoint URL and the AWS configuration")
    raise error


def _translate_answer(
    error: ClientError, bucket: str, where: str, caller: Callable[[], str | None]
) -> ModelServingError:
    code, status = code_of(error), status_of(error)
    said = f"{error.operation_name} answered {status} {code}".strip()
    if error.operation_name.startswith("AssumeRole") or code in _CREDENTIAL_CODES:
        return CredentialsError(
            f"{where}: AWS does not accept the credentials: {error}",
            hint="check the role's trust policy, the service account annotation and the clock",
        )
    if code == "NoSuchBucket":
        return BucketNotFoundError(f"{where}: bucket {bucket!r} does not exist", hint="check the model's uri")
    if code == "InvalidObjectState":
        return StoreRefusedError(f"{where}: the object is archived", hint="restore it from its archive storage class")
    if status == 403:
        identity = caller()
        return AccessDeniedError(
            f"{where}: access denied, or the key does not exist (S3 answers 403 for a missing key too where "
            f"s3:ListBucket is not granted); {said}{f'; called as {identity}' if identity else ''}",
            hint="grant s3:ListBucket on the bucket and s3:GetObject on the prefix, kms:Decrypt where the bucket has "
            "its own key, and check that the key exists",
        )
    if status in (404, 412):
        return ObjectReplacedError(
            f"{where}: the object changed or went away while it was read; {said}",
            hint="let the upload finish, then try again; publish new versions under a new prefix",
        )
    if is_transient(error):
        return StoreUnavailableError(
            f"{where}: the store is unavailable or asks to slow down; {said}, after {_ATTEMPTS} attempts or at the "
            "deadline",
            hint="try again later; lower the number of connections where many nodes start at once",
        )
    return StoreRefusedError(f"{where}: {error}", hint="check the model's uri and the endpoint URL")
