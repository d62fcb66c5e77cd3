import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.metrics import STATES
from ray_model_serving.serving.gate import Gate, LoadFailedError, State

pytestmark = pytest.mark.asyncio

# Longer than any step here takes; a test that needs it all has failed.
PATIENCE_S = 10.0


class TransientError(ModelServingError):
    kind = "transient"
    permanent = False


class PermanentError(ModelServingError):
    kind = "access_denied"


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield pool


def make_gate(
    executor: ThreadPoolExecutor,
    load: Callable[[], None],
    *,
    warm_up: Callable[[], None] = lambda: None,
    deadline_s: float = PATIENCE_S,
    first_backoff_s: float = 0.0,
    states: list[State] | None = None,
) -> Gate:
    seen = states if states is not None else []
    return Gate(
        load,
        warm_up,
        executor=executor,
        deadline_s=deadline_s,
        on_change=seen.append,
        first_backoff_s=first_backoff_s,
    )


def held_by(release: threading.Event) -> Callable[[], None]:
    def load() -> None:
        assert release.wait(PATIENCE_S)

    return load


async def test_the_load_runs_off_the_event_loop_so_that_the_loop_can_go_on(executor):  # UR-018
    release = threading.Event()
    released: list[bool] = []
    gate = make_gate(executor, lambda: released.append(release.wait(PATIENCE_S)))

    waiter = asyncio.create_task(gate.opened())
    asyncio.get_running_loop().call_later(0.01, release.set)
    await waiter

    assert released == [True], "a load on the event loop would have kept the loop from setting the event"


async def test_many_waiters_share_one_load(executor):
    release, loads = threading.Event(), []

    def load() -> None:
        loads.append(1)
        release.wait(PATIENCE_S)

    gate = make_gate(executor, load)
    waiters = [asyncio.create_task(gate.opened()) for _ in range(50)]
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*waiters)
    await gate.opened()

    assert (len(loads), gate.attempts, gate.state) == (1, 1, State.READY)


async def test_the_states_are_passed_in_order_and_are_those_of_the_metric(executor):
    states: list[State] = []
    gate = make_gate(executor, lambda: None, states=states)
    assert gate.state is State.UNLOADED, "nothing loads before somebody asks"

    await gate.opened()

    assert states == [State.LOADING, State.WARMING, State.READY]
    assert tuple(state.value for state in State) == STATES


async def test_the_gate_stays_shut_until_the_warm_up_is_over(executor):
    release, order = threading.Event(), []

    def warm_up() -> None:
        release.wait(PATIENCE_S)
        order.append("warm")

    gate = make_gate(executor, lambda: order.append("loaded"), warm_up=warm_up)
    waiter = asyncio.create_task(gate.opened())
    while gate.state is not State.WARMING:
        await asyncio.sleep(0.001)
    assert not waiter.done(), "the first request must not pay for the warm-up"
    release.set()
    await waiter
    assert order == ["loaded", "warm"]


async def test_a_cancelled_waiter_does_not_cancel_the_load(executor):
    release = threading.Event()
    gate = make_gate(executor, held_by(release))
    impatient = asyncio.create_task(gate.opened())
    patient = asyncio.create_task(gate.opened())
    await asyncio.sleep(0)

    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    release.set()
    await patient

    assert (gate.attempts, gate.state) == (1, State.READY)


async def test_a_waiter_with_a_deadline_leaves_and_the_load_goes_on(executor):
    release = threading.Event()
    gate = make_gate(executor, held_by(release))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await gate.opened()
    assert gate.state is State.LOADING
    release.set()
    await gate.opened()
    assert gate.attempts == 1


async def test_a_permanent_failure_stays_with_its_cause(executor):
    loads: list[int] = []

    def load() -> None:
        loads.append(1)
        raise PermanentError("403 for s3://models/a/", hint="grant s3:GetObject")

    gate = make_gate(executor, load)
    for _ in range(3):
        with pytest.raises(LoadFailedError) as caught:
            await gate.opened()
        assert caught.value.permanent
        assert "403 for s3://models/a/" in str(caught.value)
        assert "grant s3:GetObject" in str(caught.value)
    assert len(loads) == 1, "a retry can't help, so it must not cost the store a request per caller"
    assert gate.state is State.FAILED
    assert gate.fault is None, "a new process would fail in the same way"


async def test_an_untyped_failure_is_permanent_and_names_its_type(executor):
    def load() -> None:
        raise ZeroDivisionError("in build")

    with pytest.raises(LoadFailedError, match="ZeroDivisionError: in build") as caught:
        await make_gate(executor, load).opened()
    assert caught.value.permanent


async def test_a_failure_that_is_kept_does_not_keep_the_weights_that_the_load_had_made(executor):
    class Weights:
        pass

    made: list[weakref.ref[Weights]] = []

    def load() -> None:
        weights = Weights()
        made.append(weakref.ref(weights))
        try:
            raise MemoryError
        except MemoryError as error:
            raise TransientError("no memory") from error

    gate = make_gate(executor, load, first_backoff_s=60)
    with pytest.raises(LoadFailedError):
        await gate.opened()
    assert gate.failure
    # The executor's thread lets go of its last work with the next.
    await asyncio.get_running_loop().run_in_executor(executor, list)
    assert made[0]() is None, "their memory is wanted by whatever is loaded next"


async def test_the_next_caller_retries_a_transient_failure_after_the_back_off(executor):
    outcomes = iter([TransientError("503 Slow Down"), None])

    def load() -> None:
        outcome = next(outcomes)
        if outcome:
            raise outcome

    gate = make_gate(executor, load)
    with pytest.raises(LoadFailedError, match="503 Slow Down") as caught:
        await gate.opened()
    assert not caught.value.permanent

    await gate.opened()

    assert (gate.attempts, gate.state, gate.failure) == (2, State.READY, None)


async def test_callers_within_the_back_off_get_the_failure_and_when_to_come_back(executor):
    loads: list[int] = []

    def load() -> None:
        loads.append(1)
        raise TransientError("503 Slow Down")

    gate = make_gate(executor, load, first_backoff_s=60.0)
    for _ in range(2):
        with pytest.raises(LoadFailedError):
            await gate.opened()
    with pytest.raises(LoadFailedError) as caught:
        await gate.opened()
    assert len(loads) == 1, "requests must not turn a slow store into a storm"
    assert caught.value.retry_after_s is not None
    assert 0 < caught.value.retry_after_s <= 30.0, "the back-off has an upper bound"


async def test_opening_in_the_background_retries_transient_failures_by_itself(executor):
    outcomes = iter([TransientError("a"), TransientError("b"), None])

    def load() -> None:
        outcome = next(outcomes)
        if outcome:
            raise outcome

    gate = make_gate(executor, load, first_backoff_s=0.001)
    await gate.opened_within(PATIENCE_S)
    assert (gate.attempts, gate.state) == (3, State.READY)


async def test_opening_in_the_background_ends_when_the_time_is_over(executor):
    def load() -> None:
        raise TransientError("503 Slow Down")

    gate = make_gate(executor, load, first_backoff_s=1.0)
    with pytest.raises(LoadFailedError, match="503 Slow Down"):
        await gate.opened_within(0.5)
    assert gate.attempts == 1


async def test_a_load_over_its_deadline_fails_for_good_and_asks_for_a_new_process(executor):
    release = threading.Event()
    gate = make_gate(executor, held_by(release), deadline_s=0.01)
    try:
        for _ in range(2):
            with pytest.raises(LoadFailedError, match=r"loading was not over after load_deadline_s 0\.01"):
                await gate.opened()
        assert gate.attempts == 1, "a second load beside a stuck one would double its memory"
        assert gate.fault is not None, "only Serve can end a stuck thread, by replacing the replica"
    finally:
        release.set()


async def test_a_time_out_inside_the_load_is_not_taken_for_the_deadline(executor):
    def load() -> None:
        raise TimeoutError("the store's own")

    gate = make_gate(executor, load)
    with pytest.raises(LoadFailedError, match="TimeoutError: the store's own"):
        await gate.opened()
    assert gate.fault is None


async def test_the_failure_survives_the_way_between_processes():
    import pickle

    error = pickle.loads(pickle.dumps(LoadFailedError("no", hint="do", retry_after_s=3.0)))
    assert (error.message, error.hint, error.retry_after_s, error.permanent) == ("no", "do", 3.0, False)
