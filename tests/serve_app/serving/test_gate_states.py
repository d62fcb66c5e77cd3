"""The gate under any order of callers, cancellations, outcomes and waits."""

import asyncio
from concurrent.futures import Future
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.serving.gate import Gate, LoadFailedError, State

BACKOFF_S = 1.0
DEADLINE_S = 1000.0
ALLOWED = {
    State.UNLOADED: {State.LOADING},
    State.LOADING: {State.WARMING, State.FAILED},
    State.WARMING: {State.READY, State.FAILED},
    State.FAILED: {State.LOADING},
    State.READY: set[State](),
}


class TransientError(ModelServingError):
    permanent = False


class ManualExecutor:
    """Runs nothing by itself: the test says how each step ends."""

    def __init__(self) -> None:
        self.steps: list[Future[Any]] = []
        self.most_at_once = 0

    def submit(self, function: Any, *args: Any) -> "Future[Any]":
        del function, args
        step: Future[Any] = Future()
        step.set_running_or_notify_cancel()
        self.steps.append(step)
        self.most_at_once = max(self.most_at_once, sum(not step.done() for step in self.steps))
        return step

    @property
    def pending(self) -> "Future[Any] | None":
        return self.steps[-1] if self.steps and not self.steps[-1].done() else None


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock the test moves."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


class GateMachine(RuleBasedStateMachine):
    """One rule a thing that can happen to a gate; after each, the loop runs until nothing more follows."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = SkippingLoop()
        self.executor = ManualExecutor()
        self.seen = [State.UNLOADED]
        self.waiters: list[asyncio.Task[None]] = []
        self.permanent = False
        self.gate = Gate(
            lambda: None,
            lambda: None,
            executor=self.executor,  # type: ignore[arg-type]
            deadline_s=DEADLINE_S,
            on_change=self.seen.append,
            first_backoff_s=BACKOFF_S,
        )

    def settle(self) -> None:
        async def turns() -> None:
            for _ in range(12):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    @rule()
    def ask(self) -> None:
        self.waiters.append(self.loop.create_task(self.gate.opened()))
        self.settle()

    @precondition(lambda self: any(not waiter.done() for waiter in self.waiters))
    @rule(data=st.data())
    def cancel_one(self, data: st.DataObject) -> None:
        state, attempts = self.gate.state, self.gate.attempts
        waiting = [waiter for waiter in self.waiters if not waiter.done()]
        data.draw(st.sampled_from(waiting)).cancel()
        self.settle()
        assert (self.gate.state, self.gate.attempts) == (state, attempts), "a waiter that leaves takes nothing along"

    @precondition(lambda self: self.executor.pending)
    @rule()
    def step_succeeds(self) -> None:
        assert self.executor.pending
        self.executor.pending.set_result(None)
        self.settle()

    @precondition(lambda self: self.executor.pending)
    @rule(permanent=st.booleans())
    def step_fails(self, permanent: bool) -> None:
        assert self.executor.pending
        error = ModelServingError("403") if permanent else TransientError("503")
        self.permanent = permanent
        self.executor.pending.set_exception(error)
        self.settle()
        assert self.gate.state is State.FAILED

    @rule(seconds=st.sampled_from([0.5, 40.0]))
    def wait(self, seconds: float) -> None:
        self.loop.ahead_s += seconds
        self.settle()

    @precondition(lambda self: self.executor.pending)
    @rule()
    def hang_over_the_deadline(self) -> None:
        pending = self.executor.pending
        self.loop.ahead_s += DEADLINE_S + 1
        self.settle()
        assert self.gate.fault, "a stuck thread needs a new process"
        assert self.gate.state is State.FAILED
        assert pending
        pending.set_result(None)  # the stuck step ends after all: nobody may take it for a success
        self.settle()
        assert self.gate.state is State.FAILED

    @invariant()
    def one_step_runs_at_a_time(self) -> None:
        assert self.executor.most_at_once <= 1, "two loads at once take twice the memory"

    @invariant()
    def states_follow_each_other_as_declared(self) -> None:
        assert all(later in ALLOWED[earlier] for earlier, later in zip(self.seen, self.seen[1:], strict=False))
        assert self.seen[-1] is self.gate.state

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        waiting = any(not waiter.done() for waiter in self.waiters)
        assert not waiting or self.gate.state in (State.LOADING, State.WARMING), "whoever waits has an attempt to await"

    @invariant()
    def answers_match_the_outcome(self) -> None:
        for waiter in self.waiters:
            if waiter.done() and not waiter.cancelled():
                error = waiter.exception()
                assert error is None or isinstance(error, LoadFailedError)
                assert error is not None or self.gate.state is State.READY, "let in only when loaded and warm"

    @invariant()
    def attempts_are_bounded_by_what_can_help(self) -> None:
        assert self.gate.attempts == self.seen.count(State.LOADING)
        if self.gate.state is State.FAILED and self.permanent and not self.gate.fault:
            assert self.gate.failure, "nothing was tried since"
            assert self.gate.failure.permanent, "a permanent cause is not tried again"

    def teardown(self) -> None:
        for waiter in self.waiters:
            waiter.cancel()
        if pending := self.executor.pending:
            pending.set_exception(TransientError("the test is over"))
        self.settle()
        self.loop.close()


TestGate = GateMachine.TestCase
TestGate.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
