"""The refusals of a replica: what it says, with which status, and when to come back."""

from collections.abc import Sequence

from ray_model_serving.contract.settings import Limits, ModelSettings
from ray_model_serving.serving.exchange import RefusedError, retry_after
from ray_model_serving.serving.gate import LoadFailedError

# A caller that comes back waits for the load again, so there is nothing to gain from a longer pause.
RETRY_WHILE_LOADING_S = 1.0
# Memory comes back as requests end.
RETRY_WHEN_SHORT_S = 1.0
# By then Serve sends requests to other replicas.
RETRY_WHEN_DRAINING_S = 1.0


def not_found(path: str, route: str, variants: Sequence[str] = ()) -> RefusedError:
    base = route.rstrip("/")
    hint = f"POST {route} predicts, GET {base}/status reports, GET {base}/ready says whether it would answer"
    if variants:
        hint += f"; variants, each below {base}/: {', '.join(variants)}"
    return RefusedError(404, "not_found", f"nothing answers {path!r}", hint=hint)


def wrong_method(method: str) -> RefusedError:
    hint = 'POST {"inputs": [...]}'
    return RefusedError(405, "wrong_method", f"got {method}", hint=hint, headers={"allow": "POST"})


def too_costly(index: int, cost: int, most: int) -> RefusedError:
    return RefusedError(
        413,
        "input_too_costly",
        f"inputs[{index}] costs {cost}, one forward pass takes at most limits.max_batch_cost {most}",
        hint="send a smaller input, or raise limits.max_batch_cost where the device's memory allows it",
        reason="too_large",
    )


def memory_short(model: ModelSettings, problem: str) -> RefusedError:
    return RefusedError(
        model.limits.busy_status,
        "memory",
        f"model {model.name}: {problem}",
        hint="send it again later; where this is frequent, raise the pod's memory or lower limits.max_ongoing_requests",
        permanent=False,
        reason="memory",
        headers=retry_after(RETRY_WHEN_SHORT_S),
    )


def out_of_memory(model: ModelSettings, message: str) -> RefusedError:
    return RefusedError(
        503,
        "out_of_memory",
        f"model {model.name} ran out of memory in this batch and in half of it: {message}",
        hint="lower limits.max_batch_size or limits.max_batch_cost, or send smaller inputs",
        permanent=False,
        reason="memory",
        headers=retry_after(RETRY_WHEN_SHORT_S),
    )


def draining(name: str, why: str) -> RefusedError:
    return RefusedError(
        503,
        "draining",
        f"this replica of model {name} takes no new work: {why}",
        hint="send it again: another replica answers",
        permanent=False,
        reason="draining",
        headers=retry_after(RETRY_WHEN_DRAINING_S),
    )


def late_place(limits: Limits) -> RefusedError:
    message = f"no place was free within request_deadline_s {limits.request_deadline_s:g}"
    headers = retry_after(RETRY_WHILE_LOADING_S)
    return RefusedError(limits.busy_status, "busy", message, permanent=False, reason="deadline", headers=headers)


def late_body(limits: Limits) -> RefusedError:
    message = f"the body did not arrive within request_deadline_s {limits.request_deadline_s:g}"
    return RefusedError(408, "deadline", message, permanent=False, reason="deadline")


def still_loading(limits: Limits) -> RefusedError:
    return RefusedError(
        503,
        "loading",
        f"the model was not loaded within request_deadline_s {limits.request_deadline_s:g}",
        hint="the load goes on: send the request again",
        permanent=False,
        reason="deadline",
        headers=retry_after(RETRY_WHILE_LOADING_S),
    )


def late_prediction(limits: Limits) -> RefusedError:
    message = f"the model did not answer within request_deadline_s {limits.request_deadline_s:g}"
    return RefusedError(504, "deadline", message, permanent=False, reason="deadline")


def model_failed(error: Exception) -> RefusedError:
    message = f"the model failed: {type(error).__name__}: {error}"
    return RefusedError(500, "model_failed", message, hint="see the replica's log", reason="model_failed")


def load_failed(failure: LoadFailedError) -> RefusedError:
    headers = {} if failure.retry_after_s is None else retry_after(failure.retry_after_s)
    return RefusedError(
        503,
        failure.kind,
        failure.message,
        hint=failure.hint,
        permanent=failure.permanent,
        reason="load_failed",
        headers=headers,
    )
