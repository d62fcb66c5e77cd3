"""The gate of a replica: one load at a time for however many wait, run off the event loop."""

import asyncio
import traceback
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum

from ray_model_serving.contract.errors import ModelServingError

FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 30.0


class State(str, Enum):
    """The values of the metric ``model_state``."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    FAILED = "failed"


class LoadFailedError(ModelServingError):
    """The model could not be loaded; the message carries the cause.

    ``permanent``: this replica will not try again. Otherwise the next request after ``retry_after_s`` does.
    """

    kind = "load_failed"

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s
        self.permanent = retry_after_s is None

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.message, self.hint, self.retry_after_s))


def _rebuild(message: str, hint: str, retry_after_s: float | None) -> LoadFailedError:
    return LoadFailedError(message, hint=hint, retry_after_s=retry_after_s)


class LoadTimeoutError(ModelServingError):
    """A load that took longer than its deadline. Another replica may do better, so it is worth coming back."""

    kind = "load_timeout"
    permanent = False


@dataclass(frozen=True, kw_only=True)
class _Failure:
    cause: ModelServingError
    retry_at: float | None
    """On the event loop's clock; None for a permanent cause."""

    def as_error(self) -> LoadFailedError:
        # A new one each time: an instance that several waiters raise would collect all their tracebacks.
        message, hint = f"the model could not be loaded: {self.cause.message}", self.cause.hint
        if self.retry_at is None:
            return LoadFailedError(message, hint=hint)
        wait_s = max(0.0, self.retry_at - asyncio.get_running_loop().time())
        return LoadFailedError(message, hint=hint, retry_after_s=wait_s)


class Gate:
    """Opens once ``load`` and then ``warm_up`` have run on ``executor``; belongs to one event loop.

    A failure with a permanent cause stays. After any other the next caller of :meth:`opened` starts a new attempt, but
    not before a back-off that doubles from ``first_backoff_s``. An attempt over ``deadline_s`` fails for good: its
    thread can't be stopped, so only a new process can try again, and :attr:`fault` says so.
    """

    def __init__(
        self,
        load: Callable[[], None],
        warm_up: Callable[[], None],
        *,
        executor: Executor,
        deadline_s: float,
        on_change: Callable[[State], None],
        first_backoff_s: float = FIRST_BACKOFF_S,
    ) -> None:
        self._steps = ((State.LOADING, load), (State.WARMING, warm_up))
        self._executor = executor
        self._deadline_s = deadline_s
        self._on_change = on_change
        self._first_backoff_s = first_backoff_s
        self._attempts = 0
        self._task: asyncio.Task[_Failure | None] | None = None
        self._failure: _Failure | None = None
        self._state = State.UNLOADED
        self.fault: str | None = None
        """Why this process can't go on, or None."""

    @property
    def state(self) -> State:
        return self._state

    @property
    def attempts(self) -> int:
        """Loads that were started."""
        return self._attempts

    @property
    def failure(self) -> LoadFailedError | None:
        """The last failure, while nothing has been tried since."""
        return self._failure.as_error() if self._failure else None

    async def opened(self) -> None:
        """Return when the model is ready, loading it where nobody has. Raises :class:`LoadFailedError`.

        A caller that is cancelled stops waiting; the load goes on for the others and for later requests.
        """
        if self._state is State.READY:
            return
        failure = await asyncio.shield(self._current_attempt())
        if failure:
            raise failure.as_error()

    async def opened_within(self, total_s: float) -> None:
        """As :meth:`opened`, trying again after failures that are not permanent until ``total_s`` are over."""
        end = asyncio.get_running_loop().time() + total_s
        while True:
            try:
                return await self.opened()
            except LoadFailedError as failure:
                wait_s = failure.retry_after_s
                if wait_s is None or asyncio.get_running_loop().time() + wait_s >= end:
                    raise
            await asyncio.sleep(wait_s)

    def _current_attempt(self) -> "asyncio.Task[_Failure | None]":
        now = asyncio.get_running_loop().time()
        retry_at = self._failure.retry_at if self._failure else None
        due = retry_at is not None and now >= retry_at and not self.fault
        if self._task is None or (self._task.done() and due):
            self._attempts += 1
            self._failure = None
            self._task = asyncio.create_task(self._attempt())
        return self._task

    async def _attempt(self) -> _Failure | None:
        loop = asyncio.get_running_loop()
        clock = asyncio.timeout(self._deadline_s)
        try:
            async with clock:
                for state, step in self._steps:
                    self._enter(state)
                    await loop.run_in_executor(self._executor, step)
        except Exception as error:
            _let_go(error)
            return self._fail(self._over_deadline() if clock.expired() else _as_cause(error))
        self._enter(State.READY)
        return None

    def _over_deadline(self) -> ModelServingError:
        error = LoadTimeoutError(
            f"{self._state.value} was not over after load_deadline_s {self._deadline_s:g}",
            hint="raise load_deadline_s, or see in the replica's status which phase takes long",
        )
        self.fault = str(error)
        return error

    def _fail(self, cause: ModelServingError) -> _Failure:
        # With a fault this process is on its way out: callers come back once another has taken its place.
        backoff_s = min(self._first_backoff_s * 2 ** (self._attempts - 1), LONGEST_BACKOFF_S)
        backoff_s = LONGEST_BACKOFF_S if self.fault else backoff_s
        retry_at = None if cause.permanent else asyncio.get_running_loop().time() + backoff_s
        self._failure = _Failure(cause=cause, retry_at=retry_at)
        self._enter(State.FAILED)
        return self._failure

    def _enter(self, state: State) -> None:
        self._state = state
        self._on_change(state)


def _let_go(error: BaseException) -> None:
    """Empty the frames of an error that is kept: half-loaded weights among their variables would be kept with it."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        chain += [one.__cause__, one.__context__]


def _as_cause(error: Exception) -> ModelServingError:
    # Anything untyped is a mistake in a model class or in this library; trying again would only repeat it.
    if isinstance(error, ModelServingError):
        return error
    return ModelServingError(f"{type(error).__name__}: {error}", hint="see the replica's log for the traceback")
