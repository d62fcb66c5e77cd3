"""What Ray Serve knows of the request under way."""

from dataclasses import replace
from typing import Any, cast

from ray.serve import context

from ray_model_serving.serving.requests import settled_id

# Serve has no public name for the context of a request (Ray 2.60).
_serve = cast("Any", context)


def request_id() -> tuple[str, bool]:
    """The id of this request, and whether it had to be replaced.

    It comes from ``X-Request-ID`` or is made by Serve, whose proxy sends it back in that header. One that may not stand
    in logs is replaced from here on, so that Serve's records and the next deployment have the same one as ours.
    """
    current = _serve._get_serve_request_context()
    settled = settled_id(current.request_id)
    if settled != current.request_id:
        _serve._serve_request_context.set(replace(current, request_id=settled))
    return settled, settled != current.request_id
