"""Requests to the served model, and what its replicas say of themselves."""

import json
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# A request goes to a replica of Serve's choice; with two replicas, 60 requests miss one with a chance of 2^-59.
_STATUS_TRIES_PER_REPLICA = 30
_TIMEOUT_S = 60.0


def embed(url: str, sentences: Sequence[str]) -> list[list[float]]:
    """One request with several sentences; one vector for each."""
    body = json.dumps({"inputs": list(sentences)}).encode()
    request = urllib.request.Request(url, data=body, headers={"content-type": "application/json"})  # noqa: S310
    return _read(request)["outputs"]


def embed_at_once(url: str, sentence: str, count: int) -> list[list[float]]:
    """``count`` requests that arrive together."""
    with ThreadPoolExecutor(count) as pool:
        answers = [pool.submit(embed, url, [sentence]) for _ in range(count)]
        return [answer.result()[0] for answer in answers]


def statuses(url: str, replicas: int) -> list[dict[str, Any]]:
    """The status of every replica, ordered by the start of its load. Raises RuntimeError if one does not answer."""
    found: dict[str, dict[str, Any]] = {}
    for _ in range(_STATUS_TRIES_PER_REPLICA * replicas):
        status = _read(urllib.request.Request(f"{url}/status"))  # noqa: S310
        found[status["replica_id"]] = status
        if len(found) == replicas:
            return sorted(found.values(), key=_load_start)
    raise RuntimeError(f"{len(found)} of {replicas} replicas answered")


def _load_start(status: dict[str, Any]) -> float:
    return status["load"]["started_at_s"] if status["load"] else 0.0


def _read(request: urllib.request.Request) -> Any:
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
        return json.loads(answer.read())
