from typing import Any

import pytest
import torch

from ray_model_serving.serving.halving import (
    BatchMemoryError,
    WrongOutputCountError,
    is_device_fault,
    is_out_of_memory,
    predict_or_halve,
)


class RoomFor:
    """Doubles numbers, at most ``most`` at once and none that is 13; keeps what it was asked."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.calls: list[list[int]] = []
        self.freed = 0

    def __call__(self, inputs: list[Any]) -> list[Any]:
        self.calls.append(inputs)
        if len(inputs) > self.most or 13 in inputs:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return [value * 2 for value in inputs]

    def free(self) -> None:
        self.freed += 1


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"), True),
        (torch.AcceleratorError("CUDA error: out of memory"), True),
        (MemoryError(), True),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, memory: bool):
    assert is_out_of_memory(error) is memory
    assert is_device_fault(error) is isinstance(error, torch.AcceleratorError)


def test_a_batch_that_fits_runs_once():
    model = RoomFor(4)
    assert predict_or_halve(model, [1, 2, 3, 4], free=model.free) == [2, 4, 6, 8]
    assert (model.calls, model.freed) == ([[1, 2, 3, 4]], 0)


def test_a_batch_without_room_runs_as_two_halves_after_memory_was_given_back():
    model = RoomFor(3)
    assert predict_or_halve(model, [1, 2, 3, 4, 5], free=model.free) == [2, 4, 6, 8, 10]
    assert model.calls == [[1, 2, 3, 4, 5], [1, 2], [3, 4, 5]]
    assert model.freed == 1


def test_only_the_half_without_room_fails_and_nothing_is_halved_twice():
    model = RoomFor(2)
    results = predict_or_halve(model, [1, 13, 3, 4], free=model.free)
    assert [type(result) for result in results] == [BatchMemoryError, BatchMemoryError, int, int]
    assert results[2:] == [6, 8]
    assert "Tried to allocate 2.00 GiB" in str(results[0])
    assert len(model.calls) == 3
    assert model.freed == 2


def test_one_input_without_room_fails_alone():
    model = RoomFor(2)
    (result,) = predict_or_halve(model, [13], free=model.free)
    assert isinstance(result, BatchMemoryError)
    assert len(model.calls) == 1


def test_the_failed_try_keeps_no_tensor_alive():
    import gc
    import weakref

    class Held:
        pass

    kept: list[weakref.ref[Held]] = []

    def predict(inputs: list[Any]) -> list[Any]:
        if len(inputs) == 2:
            activations = Held()
            kept.append(weakref.ref(activations))
            raise torch.OutOfMemoryError("no room")
        assert all(held() is None for held in kept), "the halves run beside what the whole batch left"
        return inputs

    gc.disable()
    try:
        assert predict_or_halve(predict, [1, 2], free=lambda: None) == [1, 2]
    finally:
        gc.enable()


def test_other_errors_are_not_tried_again():
    calls: list[int] = []

    def predict(inputs: list[Any]) -> list[Any]:
        calls.append(len(inputs))
        raise ValueError("index out of range")

    with pytest.raises(ValueError, match="index out of range"):
        predict_or_halve(predict, [1, 2], free=lambda: None)
    assert calls == [2]


def test_a_half_that_loses_outputs_is_found_out():
    with pytest.raises(WrongOutputCountError, match="got 2 inputs and returned 1"):
        predict_or_halve(lambda inputs: inputs[1:], [1, 2], free=lambda: None)
