"""One request, again while its failure is transient: jittered back-off inside a deadline, or as the store asks.

botocore's own retries are off: it repeats a cut body five times within 0.1 s and would multiply with ours.
"""

import logging
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, TypeVar, cast

import stamina
from botocore.exceptions import (
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    ResponseStreamingError,
    SSLError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from urllib3.exceptions import HTTPError

T = TypeVar("T")

log = logging.getLogger(__name__)

ATTEMPTS = 8
_WAIT_MAX_S = 5.0
# A store that asks for more than this is as good as away; the attempts and the deadline bound the sum.
_RETRY_AFTER_MAX_S = 60.0
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


def call(operation: Callable[[], T], deadline: float) -> T:
    """Run one request, again with jittered back-off while its failure is transient, until ``deadline`` (monotonic).

    Where the store says how long to wait, that is waited. Raises the last error as it came.
    """
    for attempt in stamina.retry_context(
        on=_back_off(deadline), attempts=ATTEMPTS, timeout=max(_LEAST_TIMEOUT_S, deadline - time.monotonic()),
        wait_initial=0.1, wait_max=_WAIT_MAX_S, wait_jitter=0.5,
    ):  # fmt: skip
        with attempt:
            return operation()
    raise AssertionError("unreachable: the last attempt returned or raised")


def log_in_words() -> None:
    """Leave the lines about retries to :func:`call`; for all of the process, as stamina has it."""
    stamina.instrumentation.set_on_retry_hooks(())


def _back_off(deadline: float) -> Callable[[Exception], bool | float]:
    failed = 0

    def decide(error: Exception) -> bool | float:
        nonlocal failed
        failed += 1
        left_s = deadline - time.monotonic()
        if not is_transient(error) or left_s <= 0 or failed >= ATTEMPTS:
            return False
        asked_s = retry_after_s(error)
        # stamina's own line has the error in fields that most log formats leave out.
        log.warning("attempt %d of %d failed and is made again: %s", failed, ATTEMPTS, error)
        return True if asked_s is None else min(asked_s, _RETRY_AFTER_MAX_S, left_s)

    return decide


def retry_after_s(error: BaseException) -> float | None:
    """The seconds of an answer's Retry-After header; a date, or none, gives None."""
    if not isinstance(error, ClientError):
        return None
    text = header_of(error, "retry-after")
    return float(text) if text.isdecimal() else None


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed in a moment."""
    if isinstance(error, ClientError):
        return code_of(error) in _TRANSIENT_CODES or status_of(error) in (429, 500, 502, 503, 504)
    if type(error) is HTTPClientError:
        # What botocore did not expect: of the network, or a fault such as an answer that it can't take apart.
        return isinstance(error.kwargs.get("error"), OSError | HTTPError | HTTPException)
    return isinstance(error, _TRANSIENT_ERRORS) and not isinstance(error, SSLError)


def status_of(error: ClientError) -> int:
    return int(cast("Any", error.response).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: ClientError) -> str:
    return str(cast("Any", error.response).get("Error", {}).get("Code", ""))


def header_of(error: ClientError, name: str) -> str:
    """A header of the answer, or an empty text; ``name`` in lower case."""
    headers = cast("Any", error.response).get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(headers.get(name, ""))
