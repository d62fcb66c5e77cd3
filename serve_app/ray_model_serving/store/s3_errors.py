"""From botocore's errors to typed ones that say what to check."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.store.disk import typed
from ray_model_serving.store.errors import (
    NOT_S3_HINT,
    AccessDeniedError,
    BucketNotFoundError,
    CredentialsError,
    KeyDeniedError,
    ObjectReplacedError,
    StoreRefusedError,
    StoreUnavailableError,
    WrongRegionError,
)
from ray_model_serving.store.retries import ATTEMPTS, code_of, header_of, is_transient, status_of

_CREDENTIAL_CODES = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "InvalidToken",
    "InvalidIdentityToken",
    "RequestTimeTooSkewed",
    "TokenRefreshRequired",
}
_REGION_CODES = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}


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
            f"{where}: the store did not answer well within {ATTEMPTS} attempts or the deadline; last: {error}",
            hint="check the network path to the store (VPC endpoint, security group, endpoint URL)",
        )
    if isinstance(error, BotoCoreError):
        return StoreRefusedError(f"{where}: {error}", hint="check the endpoint URL and the AWS configuration")
    if isinstance(error, ResponseParserError):
        text = " ".join(str(error).split())
        return StoreRefusedError(f"{where}: the answer is not one of S3: {text[:200]}", hint=NOT_S3_HINT)
    if isinstance(error, OSError):
        return typed(error, Path(where))
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
    if code in _REGION_CODES or status == 301:
        return _wrong_region(error, bucket, where)
    if code.startswith("KMS") or (status == 403 and "kms:" in str(error)):
        return _key_denied(error, where, caller())
    if code == "NoSuchBucket":
        return BucketNotFoundError(f"{where}: bucket {bucket!r} does not exist", hint="check the model's uri")
    if code == "InvalidObjectState":
        return StoreRefusedError(f"{where}: the object is archived", hint="restore it from its archive storage class")
    if status == 403:
        identity = caller()
        return AccessDeniedError(
            f"{where}: access denied, or the key does not exist (S3 answers 403 for a missing key too where "
            f"s3:ListBucket is not granted); {said}{_called_as(identity)}",
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
            f"{where}: the store is unavailable or asks to slow down; {said}, after {ATTEMPTS} attempts or at the "
            "deadline",
            hint="try again later; lower the number of connections where many nodes start at once",
        )
    return StoreRefusedError(f"{where}: {error}", hint="check the model's uri and the endpoint URL")


def _wrong_region(error: ClientError, bucket: str, where: str) -> ModelServingError:
    answer = cast("Any", error.response)
    region = header_of(error, "x-amz-bucket-region") or answer.get("Error", {}).get("Region") or "one it does not name"
    return WrongRegionError(
        f"{where}: bucket {bucket!r} is in region {region}; {error}",
        hint=f"set AWS_REGION to {region}, or an endpoint URL of that region; a node pays for traffic across regions",
    )


def _key_denied(error: ClientError, where: str, identity: str | None) -> ModelServingError:
    return KeyDeniedError(
        f"{where}: the object's KMS key can't be used: {error}{_called_as(identity)}",
        hint="grant kms:Decrypt on the key to this role, in the role's policy and in the key's, and check that the key "
        "is enabled",
    )


def _called_as(identity: str | None) -> str:
    return f"; called as {identity}" if identity else ""
