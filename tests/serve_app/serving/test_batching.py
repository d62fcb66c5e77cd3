import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_model_serving.serving.batching import Batcher
from ray_model_serving.serving.halving import BatchMemoryError, WrongOutputCountError

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


@pytest.mark.asyncio
async def test_requests_that_arrive_together_share_a_batch_and_get_their_own_outputs(executor):
    model = Doubling()
    batcher = make_batcher(model, executor, wait_s=PATIENCE_S)
    answers = await asyncio.gather(*(batcher.predict([number]) for number in range(4)))
    assert answers == [[0], [2], [4], [6]]
    assert model.batches == [[0, 1, 2, 3]], "a full batch goes at once, whatever the wait"


@pytest.mark.asyncio
async def test_no_batch_is_over_the_bound_and_the_order_is_kept(executor):
    model = Doubling()
    batcher = make_batcher(model, executor, size=3)
    first, second = await asyncio.gather(batcher.predict(list(range(7))), batcher.predict([100, 101]))
    assert first == [0, 2, 4, 6, 8, 10, 12]
    assert second == [200, 202]
    assert max(len(batch) for batch in model.batches) == 3, "the bound is what the memory was planned for"


@pytest.mark.asyncio
async def test_a_lonely_input_goes_when_its_wait_is_over(executor):
    model = Doubling()
    async with asyncio.timeout(PATIENCE_S):
        assert await make_batcher(model, executor, wait_s=0.005).predict([1]) == [2]


@pytest.mark.asyncio
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


@pytest.mark.asyncio
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


@pytest.mark.asyncio
async def test_a_failing_batch_fails_its_requests_and_no_later_one(executor):
    model = Doubling()
    batcher = make_batcher(model, executor, size=2)
    with pytest.raises(ValueError, match="poison"):
        await batcher.predict(["poison", "a"])
    assert await batcher.predict([5]) == [10]


@pytest.mark.asyncio
async def test_a_model_that_loses_outputs_is_found_out(executor):
    def lose_one(inputs: list[Any]) -> list[Any]:
        return inputs[:-1]

    batcher = make_batcher(lose_one, executor)
    with pytest.raises(WrongOutputCountError, match="got 2 inputs and returned 1"):
        await batcher.predict([1, 2])


@pytest.mark.asyncio
async def test_no_batch_costs_more_than_the_bound_and_the_order_is_kept(executor):
    model = Doubling()
    batcher = Batcher(model, executor=executor, max_batch_size=8, batch_wait_s=0.0, max_batch_cost=10)
    values = [6, 3, 4, 10, 1, 1, 9]
    assert await batcher.predict(values, values) == [value * 2 for value in values]
    assert model.batches == [[6, 3], [4], [10], [1, 1], [9]], "nobody overtakes an input that does not fit"


@pytest.mark.asyncio
async def test_a_batch_that_is_full_by_cost_goes_at_once(executor):
    model = Doubling()
    batcher = Batcher(model, executor=executor, max_batch_size=8, batch_wait_s=PATIENCE_S, max_batch_cost=10)
    async with asyncio.timeout(PATIENCE_S / 2):
        answers = await asyncio.gather(batcher.predict([4], [4]), batcher.predict([6], [6]))
    assert answers == [[8], [12]]
    assert model.batches == [[4, 6]]


@given(
    costs=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    gone=st.sets(st.integers(0, 29)),
    size=st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_whatever_comes_and_goes_every_batch_keeps_both_bounds(costs: list[int], gone: set[int], size: int):
    model = Doubling()

    async def ask_all() -> None:
        with ThreadPoolExecutor(max_workers=1) as pool:
            batcher = Batcher(model, executor=pool, max_batch_size=size, batch_wait_s=0.0, max_batch_cost=12)
            tasks = [asyncio.create_task(batcher.predict([cost], [cost])) for cost in costs]
            await asyncio.sleep(0)
            for index in gone & set(range(len(costs))):
                tasks[index].cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
        for index, (cost, answer) in enumerate(zip(costs, answers, strict=True)):
            assert answer == [cost * 2] or (index in gone and isinstance(answer, asyncio.CancelledError))

    asyncio.run(ask_all())
    assert all(len(batch) <= size and sum(batch) <= 12 for batch in model.batches)


@pytest.mark.asyncio
async def test_work_that_waits_for_the_thread_is_dropped_when_its_client_goes(executor):
    model, release = Doubling(), threading.Event()
    executor.submit(release.wait, PATIENCE_S)  # such as the load of another model on the same thread
    batcher = make_batcher(model, executor, size=1)
    gone = asyncio.create_task(batcher.predict([1]))
    kept = asyncio.create_task(batcher.predict([2]))
    await asyncio.sleep(0.01)
    gone.cancel()
    await asyncio.sleep(0)
    release.set()
    assert await kept == [4]
    assert model.batches == [[2]], "it had been handed over, but no pass had begun with it"


@pytest.mark.asyncio
async def test_a_half_without_memory_fails_only_its_own_requests(executor):
    def predict(inputs: list[int]) -> list[int]:
        if sum(inputs) > 10:
            raise RuntimeError("CUDA out of memory")
        return inputs

    freed: list[int] = []
    batcher = Batcher(
        predict, executor=executor, max_batch_size=4, batch_wait_s=PATIENCE_S, free=lambda: freed.append(1)
    )
    answers = await asyncio.gather(*(batcher.predict([n]) for n in (1, 2, 3, 20)), return_exceptions=True)
    assert answers[:2] == [[1], [2]]
    assert [type(answer) for answer in answers[2:]] == [BatchMemoryError] * 2
    assert len(freed) == 2, "once before the halves, once after the half that failed"


@pytest.mark.asyncio
async def test_how_long_a_pass_takes_can_be_seen_while_it_runs_only(executor):
    model = Doubling()
    model.go_on.clear()
    batcher = make_batcher(model, executor)
    assert batcher.pass_s == 0
    running = asyncio.create_task(batcher.predict([1]))
    while not model.batches:
        await asyncio.sleep(0.001)
    assert batcher.pass_s > 0
    model.go_on.set()
    await running
    assert batcher.pass_s == 0


@pytest.mark.asyncio
async def test_closing_fails_what_waits_and_lets_the_pass_under_way_finish(executor):
    model = Doubling()
    model.go_on.clear()
    batcher = make_batcher(model, executor, size=1)
    running = asyncio.create_task(batcher.predict([1]))
    while not model.batches:
        await asyncio.sleep(0.001)
    waiting = asyncio.create_task(batcher.predict([2]))
    await asyncio.sleep(0)
    batcher.close(ConnectionError("ending"))
    with pytest.raises(ConnectionError, match="ending"):
        await waiting
    model.go_on.set()
    assert await running == [2]
