"""What inputs cost in a batch, as the model's class counts it."""

from collections.abc import Callable, Sequence
from typing import Any

from ray_model_serving.contract.settings import Limits
from ray_model_serving.serving.refusals import too_costly


class BadCostError(RuntimeError):
    """A model class whose ``cost`` raised, or gave something else than an int of at least 1."""


def costs_of(inputs: Sequence[Any], limits: Limits, cost: Callable[[Any], int]) -> list[int]:
    """One cost an input; 1 each where ``limits.max_batch_cost`` is not set, and the class is not asked.

    Raises :class:`RefusedError` (413) for an input that alone costs more than one batch may, and
    :class:`BadCostError`.
    """
    most = limits.max_batch_cost
    if most is None:
        return [1] * len(inputs)
    costs = [_cost(value, index, cost) for index, value in enumerate(inputs)]
    for index, found in enumerate(costs):
        if found > most:
            raise too_costly(index, found, most)
    return costs


def _cost(value: Any, index: int, cost: Callable[[Any], object]) -> int:
    try:
        found = cost(value)
    except Exception as error:
        raise BadCostError(f"cost() raised for inputs[{index}]: {type(error).__name__}: {error}") from error
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise BadCostError(f"cost() gave {found!r} for inputs[{index}], must be an int of at least 1")
    return found
