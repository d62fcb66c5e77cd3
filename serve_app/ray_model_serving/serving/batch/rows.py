"""One block of rows through a model: bad rows found first, the others in passes that keep its limits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ray_model_serving.contract.settings import Limits
from ray_model_serving.model import ServedModel
from ray_model_serving.serving.batch.plan import passes
from ray_model_serving.serving.costs import costs_of
from ray_model_serving.serving.exchange import RefusedError
from ray_model_serving.serving.halving import BatchMemoryError, predict_or_halve
from ray_model_serving.serving.worker import ModelWorker


@dataclass(frozen=True, kw_only=True)
class Answers:
    """An output or a problem for each row, in order."""

    outputs: list[Any]
    problems: list[str | None]


def answer(
    values: Sequence[Any],
    problems: Sequence[str | None],
    *,
    served: ServedModel,
    worker: ModelWorker,
    limits: Limits,
    batch_size: int,
) -> Answers:
    """Raises what the model raises, but for memory: that is a problem of the rows in the half that failed."""
    outputs: list[Any] = [None] * len(values)
    found = list(problems)
    good: list[int] = []
    costs: list[int] = []
    for index, value in enumerate(values):
        if found[index] is not None:
            continue
        found[index] = served.problem_with(value)
        if found[index] is None:
            try:
                costs += costs_of([value], limits, served.cost)
            except RefusedError as refused:
                found[index] = refused.message.removeprefix("inputs[0] ")
            else:
                good.append(index)
    for part in passes(costs, batch_size, limits.max_batch_cost):
        rows = good[part]
        results = predict_or_halve(worker.predict, [values[index] for index in rows], free=worker.free)
        for index, result in zip(rows, results, strict=True):
            if isinstance(result, BatchMemoryError):
                found[index] = f"there was no memory for it: {result}"
            else:
                outputs[index] = result
    return Answers(outputs=outputs, problems=found)
