"""What goes over HTTP: bounded bodies in, JSON documents out, and every refusal in one shape."""

import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.settings import Limits, ModelSettings
from ray_model_serving.serving.requests import current_request

# A request may bring more inputs than one batch holds, but not so many that it keeps the model to itself.
MAX_BATCHES_PER_REQUEST = 32
_RETRY_WHEN_BUSY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Response:
    """An answer before it is tied to a web framework; crosses process boundaries."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class RefusedError(ModelServingError):
    """A request that gets no prediction. ``reason`` is a label of ``model_requests_rejected_total``."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        hint: str = "",
        permanent: bool = True,
        reason: str = "bad_request",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.kind = kind
        self.permanent = permanent
        self.reason = reason
        self.headers = headers or {}

    def __reduce__(self) -> NoReturn:
        raise TypeError("a refusal is answered in the process that made it")

    def to_response(self) -> Response:
        """The error document, with the id of the request that the calling task works on."""
        error, request = cast("dict[str, object]", self.to_json()["error"]), current_request()
        if request is not None:
            error["request_id"] = request.request_id
        return json_response(self.status, {"error": error}, self.headers)


def json_response(status: int, document: Mapping[str, object], headers: Mapping[str, str] | None = None) -> Response:
    """Raises ValueError or TypeError for a value that JSON does not have, such as NaN or an array object."""
    body = json.dumps(document, allow_nan=False).encode()
    return Response(status=status, body=body, headers={"content-type": "application/json", **(headers or {})})


def retry_after(seconds: float) -> Mapping[str, str]:
    """The header ``Retry-After``: whole seconds, at least 1."""
    return {"retry-after": str(max(1, math.ceil(seconds)))}


def busy(model: ModelSettings) -> RefusedError:
    """The answer to a request that finds every place taken and the queue full."""
    limits = model.limits
    return RefusedError(
        limits.busy_status,
        "busy",
        f"model {model.name} works on {limits.max_ongoing_requests} requests a replica and has "
        f"{limits.max_queued_requests} waiting",
        hint="send it again later, or raise max_replicas",
        permanent=False,
        reason="busy",
        headers=retry_after(_RETRY_WHEN_BUSY_S),
    )


def is_under(path: str, route: str) -> bool:
    """Whether ``route`` answers ``path``: ``/embed`` has ``/embed``, ``/embed/`` and ``/embed/status``."""
    return path.rstrip("/") == route.rstrip("/") or path.startswith(route.rstrip("/") + "/")


def subpath(path: str, route: str) -> str:
    """What is left of a path below its route, without slashes around it."""
    return path[len(route.rstrip("/")) :].strip("/")


async def read_body(chunks: AsyncIterator[bytes], max_bytes: int) -> bytes:
    """The whole body. Raises :class:`RefusedError` (413) as soon as it is longer than ``max_bytes``."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > max_bytes:
            raise RefusedError(
                413,
                "body_too_large",
                f"the body is larger than {max_bytes} bytes",
                hint="send fewer inputs in one request, or raise limits.max_body_bytes",
                reason="too_large",
            )
    return bytes(body)


def parse_inputs(body: bytes, limits: Limits, problem_with: Callable[[Any], str | None]) -> list[Any]:
    """The inputs of ``{"inputs": [...]}``. Raises :class:`RefusedError`: 400 for bad JSON, 422 for another shape."""
    try:
        document = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, "bad_json", f"the body is not JSON: {error}", hint=_SHAPE) from error
    if not isinstance(document, dict):
        raise _bad_inputs(f"the body is {_json_type(document)}, must be an object")
    fields = cast("dict[str, object]", document)
    unknown = sorted(set(fields) - {"inputs"})
    if unknown:
        raise _bad_inputs(f"unknown key {unknown[0]!r}")
    inputs = fields.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        given = "an empty list" if inputs == [] else _json_type(inputs) if "inputs" in fields else "missing"
        raise _bad_inputs(f"inputs is {given}, must be a list with at least one input")
    values = cast("list[Any]", inputs)
    most = limits.max_batch_size * MAX_BATCHES_PER_REQUEST
    if len(values) > most:
        raise _bad_inputs(f"inputs has {len(values)} items, at most {most} go into one request")
    for index, value in enumerate(values):
        problem = problem_with(value)
        if problem:
            raise _bad_inputs(f"inputs[{index}]: {problem}")
    return values


_SHAPE = 'send {"inputs": [...]}'


def _bad_inputs(message: str) -> RefusedError:
    return RefusedError(422, "bad_inputs", message, hint=_SHAPE)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large for a number")
    return number


def _json_type(value: object) -> str:
    names = {"dict": "an object", "list": "a list", "str": "text", "bool": "a boolean", "NoneType": "null"}
    return names.get(type(value).__name__, "a number")
