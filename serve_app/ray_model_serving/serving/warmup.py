"""Reaches every replica of a model from one request: what a load balancer can't do for its sender."""

import asyncio
from collections.abc import Sequence
from typing import Any

from ray import serve

from ray_model_serving.serving.exchange import RefusedError, Response, is_under, json_response, subpath

WARMUP_PATH = "warmup"
# A replica answers from its event loop, which no load blocks; one that takes longer is left out of the answer.
_ANSWER_S = 10.0


def is_warmup(method: str, path: str, route: str) -> bool:
    """Whether a request is ``POST <route>/warmup``."""
    return method == "POST" and is_under(path, route) and subpath(path, route) == WARMUP_PATH


class Everyone:
    """All running replicas of the deployment that this replica belongs to."""

    def __init__(self, example_inputs: Sequence[Any] | None) -> None:
        self._example_inputs = example_inputs
        self._round: asyncio.Task[list[Any]] | None = None

    async def wake(self) -> Response:
        """Have each replica load where it has not, without waiting for the loads; answers what each one says."""
        # One round at a time, however many ask: a round costs a call to each replica.
        if self._round is None or self._round.done():
            self._round = asyncio.create_task(_ask_everyone())
        try:
            answers = await asyncio.shield(self._round)
            statuses = [answer for answer in answers if isinstance(answer, dict)]
            return json_response(200, {"replicas": statuses, "example_inputs": self._example_inputs})
        except Exception as error:
            message = f"the replicas could not be asked: {type(error).__name__}: {error}"
            return RefusedError(503, "warmup_failed", message, permanent=False).to_response()


async def _ask_everyone() -> list[Any]:
    own = serve.get_replica_context()
    handle = serve.get_deployment_handle(own.deployment, own.app_name)
    # A replica that dies in between is an exception among the answers; the controller's list shows it missing.
    return await handle.broadcast("wake").results_async(timeout_s=_ANSWER_S, return_exceptions=True)
