"""Clients of S3 and STS, and what is done when their credentials expire."""

import functools
import gc
import os
import re
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import botocore.session
from botocore import handlers
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, PartialCredentialsError

from ray_model_serving.store.errors import NOT_S3_HINT, AwsConfigurationError, CredentialsError, StoreRefusedError
from ray_model_serving.store.retries import code_of

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 20.0
_EXPIRED_CODES = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_API_VERSIONS: Mapping[str, str] = {"s3": "2006-03-01", "sts": "2011-06-15"}
_USERINFO = re.compile(r"//[^/?#\s]*@")
_PAGE_BYTES = 1024
_BEFORE_PARSE = "before-parse.s3.*"
_VARIABLE = "AWS_ENDPOINT_URL"
_HINT = "check --endpoint-url or AWS_ENDPOINT_URL, AWS_REGION, AWS_PROFILE and the AWS configuration files"


def make_client(service: str, endpoint_url: str | None, connections: int) -> Any:
    """A botocore client. Without ``endpoint_url``, AWS_ENDPOINT_URL and the profile decide, as everywhere in AWS tools.

    Raises :class:`AwsConfigurationError` for an endpoint, region, profile or file that no client can be made of, and
    :class:`CredentialsError` for half a pair of keys.
    """
    try:
        client = _client(service, endpoint_url, connections)
    except PartialCredentialsError as error:
        raise CredentialsError(f"no usable AWS credentials: {error}", hint="set both halves of the key") from error
    except (BotoCoreError, ValueError, OSError) as error:
        # A password may stand in an URL; it must not reach a log.
        text = _USERINFO.sub("//***@", f"{error}; the endpoint URL is {endpoint_url or os.environ.get(_VARIABLE)!r}")
        raise AwsConfigurationError(f"no client for {service} can be made: {text}", hint=_HINT) from None
    if _USERINFO.search(client.meta.endpoint_url):
        raise AwsConfigurationError(
            f"the endpoint URL {_USERINFO.sub('//***@', client.meta.endpoint_url)} has a user or password in it, which "
            "S3 does not use and every error text would show",
            hint="give keys as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or by a profile",
        )
    # The redirector asks HeadBucket for the region, and would follow a redirect of that question without an end.
    client.meta.events.register("before-call.s3.HeadBucket", _answer_as_it_comes)
    # botocore's own look at such answers comes after ours; it turns what is no XML into a 500 (botocore 1.43).
    events, own = client.meta.events, getattr(handlers, "_handle_200_error", None)
    if own:
        events.unregister(_BEFORE_PARSE, own)
        events.register(_BEFORE_PARSE, own)
    events.register_first(_BEFORE_PARSE, functools.partial(_refuse_pages, client.meta.endpoint_url))
    return client


def _answer_as_it_comes(context: dict[str, Any], **_: object) -> None:
    context["s3_redirect"]["redirected"] = True


def _refuse_pages(endpoint_url: str, operation_model: Any, response_dict: dict[str, Any], **_: object) -> None:
    """A listing that is something else. botocore reads any other XML, such as a login page, as an empty listing, and
    takes what is no XML, such as JSON, for an answer that broke off, which is tried again and again. One that did break
    off begins as a listing does, and is left to it.
    """
    if operation_model.name != "ListObjectsV2" or response_dict["status_code"] != 200:
        return
    start = bytes(response_dict["body"][:_PAGE_BYTES])
    if not any(text in start for text in (b"<ListBucketResult", b"<Error")) and not _broke_off(start):
        raise StoreRefusedError(
            f"{_USERINFO.sub('//***@', endpoint_url)} does not answer as S3 does, it sent {start[:60]!r}",
            hint=NOT_S3_HINT,
        )


def _broke_off(start: bytes) -> bool:
    """Whether it may be the beginning of a listing, cut before its first element is whole."""
    text = start.strip()
    if text.startswith(b"<?xml"):
        text = text.partition(b"?>")[2].strip()
    return bool(start.strip()) and b"<ListBucketResult".startswith(text)


def _client(service: str, endpoint_url: str | None, connections: int) -> Any:
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
    with _no_collection():
        session: Any = botocore.session.Session()
        # Only to check a name, botocore would look into the directories of all its 400 services, twice.
        session.get_component("data_loader").list_available_services = functools.partial(_only, service)
        # botocore itself does not read AWS_REGION, which the other SDKs do. S3 sends the right one back; the client
        # follows.
        region = session.get_config_variable("region") or os.environ.get("AWS_REGION") or "us-east-1"
        return session.create_client(
            service, region_name=region, api_version=_API_VERSIONS[service], endpoint_url=endpoint_url, config=config
        )


def _only(service: str, type_name: str) -> list[str]:
    del type_name
    return [service]


@contextmanager
def _no_collection() -> Generator[None]:
    """Garbage collection waits for the end of the block. A client's descriptions are a hundred thousand objects that
    live on; walking all of torch's for them took two thirds of the 0.15 s that a client takes.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
