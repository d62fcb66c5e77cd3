import asyncio
from typing import Any

import pytest

from ray_model_serving.contract.memory import MIB
from ray_model_serving.host_memory import Resident
from ray_model_serving.serving.leak import IDLE_SAMPLES, SAMPLES, LeakMonitor, LeakWatch, bound_bytes, may_leave

RESERVED = 1000 * MIB
OVER = bound_bytes(RESERVED) + 1


def test_the_bound_has_room_for_what_allocators_keep():
    assert bound_bytes(RESERVED) == 1164 * MIB


def test_a_process_that_stays_too_large_while_it_works_is_found_after_many_samples():
    watch = LeakWatch(RESERVED)
    seen = [watch.leaks(OVER, idle=False) for _ in range(SAMPLES)]
    assert seen == [False] * (SAMPLES - 1) + [True]


def test_an_idle_one_is_found_sooner_since_nothing_more_will_be_given_back():
    watch = LeakWatch(RESERVED)
    seen = [watch.leaks(OVER, idle=True) for _ in range(IDLE_SAMPLES)]
    assert seen == [False] * (IDLE_SAMPLES - 1) + [True]


def test_a_peak_that_passes_is_no_leak():
    watch = LeakWatch(RESERVED)
    for _ in range(10):
        assert not any(watch.leaks(OVER, idle=False) for _ in range(SAMPLES - 1))
        assert not watch.leaks(OVER - 1, idle=False)


@pytest.mark.parametrize(
    ("replicas", "min_replicas", "may"),
    [
        ({"RUNNING": 2}, 2, True),
        ({"RUNNING": 1}, 1, True),
        ({"RUNNING": 1}, 0, True),
        ({"RUNNING": 1}, 2, False),
        ({"RUNNING": 2, "STARTING": 1}, 2, False),
        ({"RUNNING": 2, "STOPPING": 1}, 2, False),
        ({"STARTING": 1}, 1, False),
        ({"RUNNING": 3, "STARTING": 0}, 1, True),
    ],
)
def test_the_last_one_that_is_ready_leaves_only_where_one_alone_was_asked_for(
    replicas: dict[str, int], min_replicas: int, may: bool
):
    assert may_leave(replicas, min_replicas=min_replicas) is may


class Turns:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def take(self) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def make_monitor(turn: Turns, *, anon_bytes: int = OVER) -> LeakMonitor:
    def read() -> Resident:
        return Resident(anon_bytes=anon_bytes, file_bytes=0)

    return LeakMonitor(RESERVED, read=read, ongoing=lambda: 0, turn=turn, sample_every_s=0)


@pytest.mark.asyncio
async def test_a_replica_that_leaks_waits_for_its_turn_and_then_says_both_numbers():
    turn = Turns(False, ConnectionError("the control plane is away"), False, True)
    monitor = make_monitor(turn)
    async with asyncio.timeout(10):
        await monitor.run()
    assert turn.answers == [], "it asks again at each sample"
    assert str(OVER) in str(monitor.fault)
    assert str(bound_bytes(RESERVED)) in str(monitor.fault)


@pytest.mark.asyncio
async def test_a_replica_within_its_reservation_never_asks():
    monitor = make_monitor(Turns(), anon_bytes=OVER - 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await monitor.run()
    assert monitor.fault is None
