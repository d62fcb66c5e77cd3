"""A batch that the memory has no room for is tried once more as two halves; others are not harmed by it."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

log = logging.getLogger("ray.serve")

# torch's allocators, in the messages of plain RuntimeErrors (torch 2.13; the second is the CPU's).
_MESSAGES = ("out of memory", "can't allocate memory")

Predict = Callable[[list[Any]], Sequence[Any]]


class WrongOutputCountError(RuntimeError):
    """A model returned another number of outputs than it got inputs."""


class BatchMemoryError(RuntimeError):
    """The memory had no room for a batch, nor for half of it; the message is the allocator's."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a batch failed for memory alone, after which the device goes on working."""
    # torch.OutOfMemoryError by name, since torch is not imported here.
    if isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _MESSAGES)


def is_device_fault(error: BaseException) -> bool:
    """Whether every later call would fail in this process too."""
    # torch.AcceleratorError, by name as above: after one, a CUDA context fails every call.
    return any(kind.__name__ == "AcceleratorError" for kind in type(error).__mro__)


def predict_or_halve(predict: Predict, inputs: list[Any], *, free: Callable[[], None]) -> list[Any]:
    """An output or a :class:`BatchMemoryError` for each input; ``free`` gives unused memory back before a new try.

    Raises what ``predict`` raises, unless it is for memory, and :class:`WrongOutputCountError`.
    """
    failure = _try(predict, inputs)
    if not isinstance(failure, BatchMemoryError):
        return failure
    free()
    if len(inputs) == 1:
        return [failure]
    log.warning("no memory for a batch of %d, trying two halves: %s", len(inputs), failure)
    middle = len(inputs) // 2
    results: list[Any] = []
    for half in (inputs[:middle], inputs[middle:]):
        outcome = _try(predict, half)
        if isinstance(outcome, BatchMemoryError):
            free()
            outcome = [outcome] * len(half)
        results += outcome
    return results


def _try(predict: Predict, inputs: list[Any]) -> "list[Any] | BatchMemoryError":
    try:
        outputs = predict(inputs)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        # Only the text is kept: the traceback's frames hold the tensors whose memory is wanted back.
        return BatchMemoryError(f"{type(error).__name__}: {error}")
    if len(outputs) != len(inputs):
        raise WrongOutputCountError(f"predict_batch got {len(inputs)} inputs and returned {len(outputs)}")
    return list(outputs)
