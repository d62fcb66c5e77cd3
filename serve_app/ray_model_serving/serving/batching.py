"""Joins the inputs of concurrent requests into bounded batches and runs them one at a time off the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any


class WrongOutputCountError(RuntimeError):
    """A model returned another number of outputs than it got inputs."""


@dataclass(frozen=True)
class _Item:
    value: Any
    future: "asyncio.Future[Any]"
    due_at: float
    """When it stops waiting for company, on the event loop's clock."""


class Batcher:
    """``predict`` gets at most ``max_batch_size`` inputs, the oldest of which waited ``batch_wait_s`` for company.

    It runs on ``executor``. Inputs whose request is gone (cancelled, past its deadline) are left out. Serve's own
    batching works on whole requests, so a request with many inputs would break the bound.
    """

    def __init__(
        self,
        predict: Callable[[list[Any]], Sequence[Any]],
        *,
        executor: Executor,
        max_batch_size: int,
        batch_wait_s: float,
    ) -> None:
        self._predict = predict
        self._executor = executor
        self._max_batch_size = max_batch_size
        self._batch_wait_s = batch_wait_s
        self._waiting: deque[_Item] = deque()
        self._full = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def predict(self, inputs: Sequence[Any]) -> list[Any]:
        """One output per input, in order. Raises what the model raised for a batch that held one of them."""
        loop = asyncio.get_running_loop()
        due_at = loop.time() + self._batch_wait_s
        items = [_Item(value, loop.create_future(), due_at) for value in inputs]
        self._waiting.extend(items)
        if len(self._waiting) >= self._max_batch_size:
            self._full.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            return await asyncio.gather(*(item.future for item in items))
        finally:
            for item in items:
                item.future.cancel()

    async def _run(self) -> None:
        while self._waiting:
            await self._wait_for_company()
            batch = self._take()
            if batch:
                await self._answer(batch)

    async def _wait_for_company(self) -> None:
        if len(self._waiting) >= self._max_batch_size:
            return
        self._full.clear()
        try:
            async with asyncio.timeout_at(self._waiting[0].due_at):
                await self._full.wait()
        except TimeoutError:
            return

    def _take(self) -> list[_Item]:
        batch: list[_Item] = []
        while self._waiting and len(batch) < self._max_batch_size:
            item = self._waiting.popleft()
            if not item.future.done():
                batch.append(item)
        return batch

    async def _answer(self, batch: list[_Item]) -> None:
        values = [item.value for item in batch]
        try:
            outputs = await asyncio.get_running_loop().run_in_executor(self._executor, self._predict, values)
            if len(outputs) != len(values):
                raise WrongOutputCountError(f"predict_batch got {len(values)} inputs and returned {len(outputs)}")
        except Exception as error:
            for item in batch:
                if not item.future.done():
                    item.future.set_exception(error)
            return
        for item, output in zip(batch, outputs, strict=True):
            if not item.future.done():
                item.future.set_result(output)
