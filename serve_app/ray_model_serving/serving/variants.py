"""The variants of a replica's model: loaded when asked for, each on a thread of its own, within a budget of bytes."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.memory import resident_variant_bytes
from ray_model_serving.contract.settings import ModelSettings
from ray_model_serving.serving.engine import Engine, Worker
from ray_model_serving.serving.gate import State
from ray_model_serving.serving.variant_cache import TooLargeError, VariantCache

log = logging.getLogger("ray.serve")

Admit = Callable[[int], None]
"""Called by a worker's thread between the fetch and the load with the bytes that the weights take on the device."""


class VariantWorker(Worker, Protocol):
    """A worker whose memory can be had back."""

    def unload(self) -> None:
        """Let go of files and weights; a load after it begins from nothing."""
        ...


NewWorker = Callable[[ModelSettings, Admit], VariantWorker]


class VariantTooLargeError(ModelServingError):
    """The weights of a variant are larger than what all variants of a replica may take."""

    kind = "variant_too_large"


class NoRoomError(ModelServingError):
    """Other variants kept the memory for too long."""

    kind = "no_room"
    permanent = False


class Variants:
    """Belongs to one event loop. Every engine has its own thread, so that none waits for another's load or pass."""

    def __init__(
        self,
        model: ModelSettings,
        new_worker: NewWorker,
        *,
        load_deadline_s: float,
        on_change: Callable[[], None],
        on_loaded: Callable[[dict[str, Any]], None],
    ) -> None:
        self.names = tuple(variant.name for variant in model.variants)
        self._model = model
        self._settings = {
            one.name: replace(model, name=f"{model.name}/{one.name}", uri=one.uri, snapshot_id=one.snapshot_id)
            for one in model.variants
        }
        self._new_worker = new_worker
        self._load_deadline_s = load_deadline_s
        self._on_change = on_change
        self._on_loaded = on_loaded
        self._cache = VariantCache(resident_variant_bytes(model))
        self._engines: dict[str, Engine] = {}
        self._leaving: dict[str, Engine] = {}
        self._begun_at: dict[str, float] = {}
        self._workers: dict[str, tuple[VariantWorker, ThreadPoolExecutor]] = {}
        self._turn = asyncio.Lock()
        self._moved = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed_for: Exception | None = None

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncGenerator[Engine]:
        """The engine of a variant, which stays in memory as long as it is held; whoever opens it first has it load."""
        while self._cache.is_leaving(name):
            await self._next_move()
        if self._closed_for:
            raise self._closed_for
        self._cache.pin(name)
        try:
            yield self._engines.get(name) or self._new_engine(name)
        finally:
            self._cache.unpin(name)
            self._unload_idle()

    @property
    def fault(self) -> str | None:
        """Why only a new process can help, or None: also of one that should have made room and hangs."""
        engines = (*self._engines.values(), *self._leaving.values())
        return next((engine.fault for engine in engines if engine.fault), None)

    @property
    def engines(self) -> Mapping[str, Engine]:
        """Of those that are loaded, load, or failed to."""
        return self._engines

    def status(self) -> dict[str, object]:
        """Every variant's state, and the bytes. Takes no lock and never waits."""
        return {
            "budget_bytes": self._cache.budget_bytes,
            "taken_bytes": self._cache.taken_bytes,
            "least_recently_used_first": self._cache.names_in_use(),
            "models": {name: self.status_of(name) for name in self.names},
        }

    def status_of(self, name: str) -> dict[str, object]:
        """One variant's. One that nobody asked for, or that made room for another, is ``unloaded``."""
        engine = self._engines.get(name)
        state = engine.state if engine else State.UNLOADED
        why = engine.why_not_ready() if engine else "it is loaded when a request asks for it"
        return {
            "state": state.value,
            "ready": why is None,
            "why_not_ready": why,
            "bytes": self._cache.bytes_of(name),
            "in_use": self._cache.users_of(name),
            **(engine.status() if engine else {"phase": None, "snapshot_id": None, "error": None}),
        }

    def close(self, error: Exception) -> None:
        """Fail what waits, and let go of all files once their threads are done; never waits."""
        self._closed_for = error
        for engine in self._engines.values():
            engine.close(error)
        for _, executor in self._workers.values():
            executor.shutdown(wait=False)
        self._move()

    # -- one variant ------------------------------------------------------------------------------------------------

    def _new_engine(self, name: str) -> Engine:
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"variant-{name}")
        loop = asyncio.get_running_loop()
        worker = self._new_worker(self._settings[name], lambda need_bytes: self._admit(loop, name, need_bytes))
        self._workers[name] = worker, executor
        self._engines[name] = Engine(
            self._settings[name],
            worker,
            executor=executor,
            load_deadline_s=self._load_deadline_s,
            on_change=lambda: self._changed(name, self._engines[name]),
            on_loaded=self._on_loaded,
        )
        return self._engines[name]

    def _changed(self, name: str, engine: Engine) -> None:
        if engine.state is State.LOADING:
            self._begun_at[name] = asyncio.get_running_loop().time()
        elif engine.state is State.READY:
            self._cache.loaded(name)
        elif engine.state is State.FAILED and not engine.fault and not self._closed_for:
            # With a fault its thread may still load; the process is on its way out.
            self._later(self._clean_up(name, *self._workers[name]))
        self._on_change()
        self._move()

    async def _clean_up(self, name: str, worker: VariantWorker, executor: ThreadPoolExecutor) -> None:
        """After a load that failed, or a warm-up: the weights may be there."""
        await self._unload_worker(name, worker, executor)
        self._cache.give_back(name)
        self._move()

    def _unload_idle(self) -> None:
        for name in self._cache.idle():
            if engine := self._engines.pop(name, None):
                self._leaving[name] = engine
                self._later(self._make_room(name, *self._workers.pop(name)))

    async def _make_room(self, name: str, worker: VariantWorker, executor: ThreadPoolExecutor) -> None:
        model = self._settings[name].name
        log.info("model %s makes room", model, extra={"event": "variant_unloaded", "model": model})
        await self._unload_worker(name, worker, executor)
        executor.shutdown(wait=False)
        self._cache.remove(name)
        del self._leaving[name]
        self._move()

    async def _unload_worker(self, name: str, worker: VariantWorker, executor: ThreadPoolExecutor) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(executor, worker.unload)
        except Exception:
            log.exception("variant %s was not unloaded in order", name)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- room -------------------------------------------------------------------------------------------------------

    def _admit(self, loop: asyncio.AbstractEventLoop, name: str, need_bytes: int) -> None:
        """In a worker's thread: wait for room, until half of the load's deadline is over: at its end it would count
        as a load that hangs, and the whole replica be replaced.
        """
        granted = asyncio.run_coroutine_threadsafe(self._reserve(name, need_bytes), loop)
        granted.result()

    async def _reserve(self, name: str, need_bytes: int) -> None:
        limit_s = self._load_deadline_s / 2
        try:
            async with (
                asyncio.timeout_at(self._begun_at[name] + limit_s),
                self._turn,
            ):  # in the order in which they came
                while not self._cache.reserve(name, need_bytes):
                    self._unload_idle()
                    await self._next_move()
        except TooLargeError as error:
            raise VariantTooLargeError(
                f"variant {name} of model {self._model.name}: {error}",
                hint="raise resident_gib of the model; a variant is to be no larger than the model itself",
            ) from error
        except TimeoutError as error:
            raise NoRoomError(
                f"variant {name} of model {self._model.name}: {need_bytes} bytes were not free within {limit_s:g} s "
                f"of the load's begin, "
                f"{self._cache.taken_bytes} of {self._cache.budget_bytes} are taken by "
                f"{', '.join(self._cache.names_in_use())}",
                hint="send it again later, or raise resident_gib of the model",
            ) from error

    async def _next_move(self) -> None:
        if self._closed_for:
            raise self._closed_for
        await self._moved.wait()
        if self._closed_for:
            raise self._closed_for

    def _move(self) -> None:
        """Wake whoever waits for a change, each once."""
        self._moved.set()
        self._moved = asyncio.Event()
