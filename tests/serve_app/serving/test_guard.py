from pathlib import Path

import pytest

from ray_model_serving.host_memory import MemoryLimit
from ray_model_serving.serving.guard import READ_EVERY_S, MemoryGuard, is_short


class FakeLimit:
    """A cgroup of 1000 bytes; counts how often it is read."""

    def __init__(self, used_bytes: int = 0, charged_bytes: int = 0) -> None:
        self.used_bytes, self.charged_bytes = used_bytes, charged_bytes
        self.reads = 0

    def __call__(self) -> MemoryLimit:
        self.reads += 1
        return MemoryLimit(
            path=Path("/limit"), limit_bytes=1000, used_bytes=self.used_bytes, charged_bytes=self.charged_bytes
        )


class Clock:
    """Each look is late enough for a new reading, unless it is stopped."""

    def __init__(self) -> None:
        self.now, self.step_s = 0.0, 1.0

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


@pytest.mark.parametrize(
    ("used_bytes", "was_short", "short"),
    [(849, False, False), (850, False, True), (849, True, True), (801, True, True), (799, True, False)],
)
def test_it_closes_at_the_fraction_and_opens_again_a_margin_below(used_bytes: int, was_short: bool, short: bool):
    limit = MemoryLimit(path=Path("/limit"), limit_bytes=1000, used_bytes=used_bytes)
    assert is_short(limit, fraction=0.85, was_short=was_short) is short


def test_it_refuses_above_the_fraction_with_both_numbers_and_opens_again():
    limit = FakeLimit(used_bytes=700)
    guard = MemoryGuard(limit, fraction=0.85, clock=Clock())
    assert guard.problem(0) is None
    limit.used_bytes = 860
    assert "860 of 1000 bytes" in str(guard.problem(0))
    limit.used_bytes = 840
    assert guard.problem(0) is not None, "around one value it must not flicker"
    limit.used_bytes = 790
    assert guard.problem(0) is None


def test_kernel_memory_counts_since_rays_monitor_counts_it():
    guard = MemoryGuard(FakeLimit(used_bytes=500, charged_bytes=900), fraction=0.85, clock=Clock())
    assert guard.problem(0) is not None, "Ray would kill at 950, whatever of it is anonymous"


def test_a_request_whose_need_leads_to_where_ray_kills_is_refused_and_a_smaller_one_is_not():
    guard = MemoryGuard(FakeLimit(used_bytes=700), fraction=0.85, clock=Clock())
    assert "950 of 1000 bytes" in str(guard.problem(250))
    assert guard.problem(249) is None


def test_what_is_promised_counts_before_it_shows_and_not_twice_after():
    limit = FakeLimit(used_bytes=100)
    guard = MemoryGuard(limit, fraction=0.85, clock=Clock())
    assert guard.problem(300) is None
    with guard.promised(300), guard.promised(300):
        assert "1000 of 1000 bytes" in str(guard.problem(300)), "three at once do not fit, though nothing shows yet"
        assert guard.problem(200) is None
        limit.used_bytes = 700
        assert guard.problem(200) is None, "what shows is what was promised"
    assert guard.problem(300) is not None, "idle at 700: that is no longer a promise"


def test_the_idle_level_follows_what_others_in_the_pod_give_back():
    limit = FakeLimit(used_bytes=600)
    guard = MemoryGuard(limit, fraction=0.85, clock=Clock())
    assert guard.problem(300) is None
    with guard.promised(300):
        limit.used_bytes = 200
        assert guard.problem(300) is None


def test_a_reading_is_shared_by_the_requests_of_fifty_milliseconds():
    limit, clock = FakeLimit(), Clock()
    guard = MemoryGuard(limit, fraction=0.85, clock=clock)
    guard.problem(0)
    clock.step_s = READ_EVERY_S / 100
    for _ in range(50):
        guard.problem(0)
    assert limit.reads == 1, "reading costs about 50 microseconds, half of what our whole layer may"
    clock.step_s = 1.0
    guard.problem(0)
    assert limit.reads == 2


def test_without_a_limit_there_is_no_guard_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture):
    guard = MemoryGuard(lambda: None, fraction=0.85, clock=Clock())
    assert [guard.problem(2**60) for _ in range(5)] == [None] * 5
    assert guard.to_json() == {"state": "off", "why": "no memory limit can be read"}
    assert len(caplog.records) == 1


def test_its_state_is_told_in_bytes():
    guard = MemoryGuard(FakeLimit(used_bytes=860), fraction=0.85, clock=Clock())
    assert guard.to_json() == {"state": "closed", "taken_bytes": 860, "limit_bytes": 1000, "fraction": 0.85}
