import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ray_model_serving.serving.batching import Batcher
from ray_model_serving.serving.halving import WrongOutputCountError

pytestmark = pytest.mark.asyncio

PATIENCE_S = 10.0


class Doubling:
    """Doubles numbers, keeps the batches it got, and can be held."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self, inputs: list[Any]) -> list[Any]:
        self.batches.append(inputs)
        assert self.go_on.wait(PATIENCE_S)
        if "poison" in inputs:
            raise ValueError("poison")
        return [value * 2 for value in inputs]


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield pool


def make_batcher(predict: Any, executor: ThreadPoolExecutor, *, size: int = 4, wait_s: float = 0.0) -> Batcher:
    return Batcher(predict, executor=executor, max_batch_size=size, batch_wait_s=wait_s)


async def test_requests_that_arrive_together_share_a_batch_and_get_their_own_outputs(executor):
    model = Doubling()
    batcher = make_batcher(model, executor, wait_s=PATIENCE_S)
    answers = await asyncio.gather(*(batcher.predict([number]) for number in range(4)))
    assert answers == [[0], [2], [4], [6]]
    assert model.batches == [[0, 1, 2, 3]], "a full batch goes at once, whatever the wait"


async def test_no_batch_is_over_the_bound_and_the_order_is_kept(executor):
    model = Doubling()
    batcher = make_batcher(model, executor, size=3)
    first, second = await asyncio.gather(batcher.predict(list(range(7))), batcher.predict([100, 101]))
    assert first == [0, 2, 4, 6, 8, 10, 12]
    assert second == [200, 202]
    assert max(len(batch) for batch in model.batches) == 3, "the bound is what the memory was planned for"


async def test_a_lonely_input_goes_when_its_wait_is_over(executor):
    model = Doubling()
    async with asyncio.timeout(PATIENCE_S):
        assert await make_batcher(model, executor, wait_s=0.005).predict([1]) == [2]


async def test_inputs_of_a_request_that_is_gone_are_not_computed(executor):
    model = Doubling()
    model.go_on.clear()
    batcher = make_batcher(model, executor, size=1)
    running = asyncio.create_task(batcher.predict([1]))
    while not model.batches:
        await asyncio.sleep(0.001)
    gone = asyncio.create_task(batcher.predict([2]))
    kept = asyncio.create_task(batcher.predict([3]))
    await asyncio.sleep(0)
    gone.cancel()
    model.go_on.set()
    assert (await running, await kept) == ([2], [6])
    assert model.batches == [[1], [3]]


async def test_a_cancelled_request_leaves_the_others_of_its_batch_alone(executor):
    model = Doubling()
    model.go_on.clear()
    batcher = make_batcher(model, executor, size=2)
    gone, kept = (asyncio.create_task(batcher.predict([number])) for number in (1, 2))
    while not model.batches:
        await asyncio.sleep(0.001)
    gone.cancel()
    model.go_on.set()
    assert await kept == [4]
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_a_failing_batch_fails_its_requests_and_no_later_one(executor):
    model = Doubling()
    batcher = make_batcher(model, executor, size=2)
    with pytest.raises(ValueError, match="poison"):
        await batcher.predict(["poison", "a"])
    assert await batcher.predict([5]) == [10]


async def test_a_model_that_loses_outputs_is_found_out(executor):
    def lose_one(inputs: list[Any]) -> list[Any]:
        return inputs[:-1]

    batcher = make_batcher(lose_one, executor)
    with pytest.raises(WrongOutputCountError, match="got 2 inputs and returned 1"):
        await batcher.predict([1, 2])
