"""One set of weights: its gate, its batches and its faults, on one thread of its own."""

import logging
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, Protocol

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.settings import ModelSettings
from ray_model_serving.serving.batching import Batcher
from ray_model_serving.serving.gate import Gate, LoadFailedError, State
from ray_model_serving.serving.halving import is_device_fault

log = logging.getLogger("ray.serve")

# A forward pass longer than a request's deadline answers nobody; this much over it, it counts as hung.
HUNG_MARGIN_S = 10.0


class Worker(Protocol):
    """What an engine needs of :class:`~ray_model_serving.serving.worker.ModelWorker`."""

    progress: Any
    report: dict[str, Any] | None

    @property
    def phase(self) -> str | None: ...
    @property
    def snapshot_id(self) -> str | None: ...
    def load(self) -> None: ...
    def warm_up(self) -> None: ...
    def predict(self, inputs: list[Any]) -> Any: ...
    def free(self) -> None: ...
    def close(self) -> None: ...


class Engine:
    """Belongs to one event loop; ``worker`` runs on ``executor``, which nobody else uses.

    ``on_change`` hears of every state, on the event loop; ``on_loaded`` of each load's report, on the worker's thread.
    """

    def __init__(
        self,
        model: ModelSettings,
        worker: Worker,
        *,
        executor: Executor,
        load_deadline_s: float,
        on_change: Callable[[], None],
        on_loaded: Callable[[dict[str, Any]], None],
    ) -> None:
        self.name = model.name
        self._limits = model.limits
        self._worker = worker
        self._executor = executor
        self._load_deadline_s = load_deadline_s
        self._on_change = on_change
        self._on_loaded = on_loaded
        self._device_fault: str | None = None
        self._gate = Gate(
            self._load, self._warm_up, executor=executor, deadline_s=load_deadline_s, on_change=self._changed
        )
        self._batcher = Batcher(
            worker.predict,
            executor=executor,
            max_batch_size=model.limits.max_batch_size,
            max_batch_cost=model.limits.max_batch_cost,
            batch_wait_s=model.limits.batch_wait_s,
            free=worker.free,
        )

    async def opened(self) -> None:
        """Return when the weights are loaded and warm. Raises :class:`LoadFailedError`."""
        await self._gate.opened()

    async def open(self) -> None:
        """As :meth:`opened`, trying again after failures that may pass until the load's deadline."""
        await self._gate.opened_within(self._load_deadline_s)

    async def predict(self, inputs: Sequence[Any], costs: Sequence[int]) -> list[Any]:
        """One output per input. Raises what the model raised, and ``BatchMemoryError``."""
        return await self._batcher.predict(inputs, costs)

    def note(self, error: Exception) -> None:
        """Keep in mind what a prediction raised, where every later one would raise it too."""
        if is_device_fault(error):
            self._device_fault = f"the device failed: {error}"

    def close(self, error: Exception) -> None:
        """Fail with ``error`` what no pass has begun with, and let go of the files once the thread is done.

        Never waits. A load under way can't be stopped; what it leaves open is closed right after it.
        """
        self._batcher.close(error)
        with suppress(RuntimeError):  # an executor that was shut down before
            self._executor.submit(self._worker.close)

    @property
    def state(self) -> State:
        return self._gate.state

    @property
    def phase(self) -> str | None:
        """What the load is doing, or None."""
        return self._worker.phase

    @property
    def failure(self) -> LoadFailedError | None:
        """The last failure, while nothing has been tried since."""
        return self._gate.failure

    @property
    def fault(self) -> str | None:
        """Why only a new process can help, or None. Takes no lock and never waits."""
        return self._gate.fault or self._device_fault or self._hung()

    def why_not_ready(self) -> str | None:
        """Why a request would not be answered now, or None. Takes no lock and never waits."""
        if self.fault:
            return self.fault
        if self.state is State.READY:
            return None
        if self.failure:
            return self.failure.message
        return f"the model is {self.state.value}" + (f", phase {self.phase}" if self.phase else "")

    def status(self) -> dict[str, object]:
        """Of the load: how far it is, or what it was. Takes no lock and never waits."""
        worker, failure = self._worker, self.failure
        return {
            "phase": worker.phase,
            "progress": asdict(worker.progress) if worker.progress else None,
            "attempts": self._gate.attempts,
            "snapshot_id": worker.snapshot_id,
            "load": worker.report,
            **(failure.to_json() if failure else {"error": None}),
        }

    def _changed(self, state: State) -> None:
        del state
        self._on_change()
        if failure := self.failure:
            extra = {
                "event": "load_failed",
                "model": self.name,
                "permanent": failure.permanent,
                "attempts": self._gate.attempts,
            }
            log.error("model %s: %s", self.name, failure.message, extra=extra)

    def _load(self) -> None:
        with self._mistakes_told():
            self._worker.load()

    def _warm_up(self) -> None:
        with self._mistakes_told():
            self._worker.warm_up()
        if self._worker.report:
            self._on_loaded(self._worker.report)

    @contextmanager
    def _mistakes_told(self) -> Generator[None]:
        try:
            yield
        except ModelServingError:
            raise  # says what is wrong by itself
        except Exception:
            log.exception("model %s: its class failed during the load", self.name, extra={"model": self.name})
            raise

    def _hung(self) -> str | None:
        taken_s, most_s = self._batcher.pass_s, self._limits.request_deadline_s + HUNG_MARGIN_S
        if taken_s <= most_s:
            return None
        return f"a forward pass has taken {taken_s:.0f} s, over request_deadline_s and {HUNG_MARGIN_S:g} s: it hangs"
