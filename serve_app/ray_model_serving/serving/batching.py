"""Joins the inputs of concurrent requests into bounded batches and runs them one at a time off the event loop."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from ray_model_serving.serving.halving import BatchMemoryError, Predict, predict_or_halve
from ray_model_serving.serving.requests import RequestRecord, current_request


@dataclass(frozen=True)
class _Item:
    value: Any
    cost: int
    future: "asyncio.Future[Any]"
    due_at: float
    """When it stops waiting for company, on the event loop's clock."""
    request: RequestRecord | None


class Batcher:
    """``predict`` gets at most ``max_batch_size`` inputs that cost ``max_batch_cost`` together; the oldest of them
    waited ``batch_wait_s`` for company.

    It runs on ``executor``; ``free`` gives unused device memory back there. Inputs whose request is gone (cancelled,
    past its deadline) are left out, up to the moment that the forward pass begins. Serve's own batching works on whole
    requests, so a request with many inputs would break the bounds.
    """

    def __init__(
        self,
        predict: Predict,
        *,
        executor: Executor,
        max_batch_size: int,
        batch_wait_s: float,
        max_batch_cost: int | None = None,
        free: Callable[[], None] = lambda: None,
    ) -> None:
        self._predict = predict
        self._executor = executor
        self._max_batch_size = max_batch_size
        self._max_batch_cost = max_batch_cost
        self._batch_wait_s = batch_wait_s
        self._free = free
        self._waiting: deque[_Item] = deque()
        self._waiting_cost = 0
        self._full = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._pass_since: float | None = None
        self._closed_for: Exception | None = None

    @property
    def pass_s(self) -> float:
        """Seconds that the forward pass under way has taken; 0 where there is none."""
        since = self._pass_since
        return 0.0 if since is None else time.monotonic() - since

    async def predict(self, inputs: Sequence[Any], costs: Sequence[int] | None = None) -> list[Any]:
        """One output per input, in order. Raises what the model raised for a batch that held one of them, and
        :class:`BatchMemoryError` where the memory had no room.

        No cost may be over ``max_batch_cost``; without ``costs`` each input costs 1.
        """
        if self._closed_for:
            raise self._closed_for
        loop = asyncio.get_running_loop()
        due_at = loop.time() + self._batch_wait_s
        paired = zip(inputs, costs or [1] * len(inputs), strict=True)
        request = current_request()
        items = [_Item(value, cost, loop.create_future(), due_at, request) for value, cost in paired]
        self._waiting.extend(items)
        self._waiting_cost += sum(item.cost for item in items)
        if self._is_full():
            self._full.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            return await asyncio.gather(*(item.future for item in items))
        finally:
            for item in items:
                item.future.cancel()

    def close(self, error: Exception) -> None:
        """Fail what still waits and whatever comes; a pass under way goes on."""
        self._closed_for = error
        while self._waiting:
            item = self._waiting.popleft()
            if not item.future.done():
                item.future.set_exception(error)
        self._waiting_cost = 0

    def _is_full(self) -> bool:
        if len(self._waiting) >= self._max_batch_size:
            return True
        return self._max_batch_cost is not None and self._waiting_cost >= self._max_batch_cost

    async def _run(self) -> None:
        while self._waiting:
            await self._wait_for_company()
            batch = self._take()
            if batch:
                await self._answer(batch)

    async def _wait_for_company(self) -> None:
        if self._is_full():
            return
        self._full.clear()
        try:
            async with asyncio.timeout_at(self._waiting[0].due_at):
                await self._full.wait()
        except TimeoutError:
            return

    def _take(self) -> list[_Item]:
        """The oldest inputs that fit; one that does not fit is not overtaken, so that it can't be kept waiting."""
        batch: list[_Item] = []
        cost = 0
        while self._waiting and len(batch) < self._max_batch_size:
            item = self._waiting[0]
            gone = item.future.done()
            if not gone and batch and self._max_batch_cost is not None and cost + item.cost > self._max_batch_cost:
                break
            self._waiting.popleft()
            self._waiting_cost -= item.cost
            if not gone:
                batch.append(item)
                cost += item.cost
        return batch

    async def _answer(self, batch: list[_Item]) -> None:
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._executor, self._pass, batch)
        except Exception as error:
            for item in batch:
                if not item.future.done():
                    item.future.set_exception(error)
            return
        for item, output in answers:
            if item.future.done():
                continue
            if isinstance(output, BatchMemoryError):
                item.future.set_exception(output)
            else:
                item.future.set_result(output)

    def _pass(self, batch: list[_Item]) -> list[tuple[_Item, Any]]:
        # The thread may have been busy until now, with a load or with another model's pass.
        wanted = [item for item in batch if not item.future.done()]
        if not wanted:
            return []
        self._pass_since = time.monotonic()
        for item in wanted:
            if item.request:
                item.request.begin("predict")
        try:
            outputs = predict_or_halve(self._predict, [item.value for item in wanted], free=self._free)
        finally:
            self._pass_since = None
        return list(zip(wanted, outputs, strict=True))
