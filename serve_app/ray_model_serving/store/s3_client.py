"""Clients of S3 and STS, and what is done when their credentials expire."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from ray_model_serving.store.retries import code_of

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 20.0
_EXPIRED_CODES = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}


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


class RenewedClient:
    """A client that is made anew when the store says that its credentials have expired.

    botocore renews what it knows the end of (IRSA, Pod Identity, SSO); a profile or a mounted token that somebody else
    rewrites is read again only by a new session.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._client = make()
        self._lock = threading.Lock()

    def ask(self, operation: Callable[[Any], T]) -> T:
        """Run a request; once more with a new client if the credentials of this one have expired."""
        client = self._client
        try:
            return operation(client)
        except ClientError as error:
            if code_of(error) not in _EXPIRED_CODES:
                raise
        with self._lock:
            if self._client is client:
                self._client = self._make()
        return operation(self._client)
