"""A lease that one holder has at a time, also when holders die and when many ask at once."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_model_serving.serving.lease import Lease


class FakeStore:
    """A dict whose single operations are atomic, as those of Ray's store are."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._lock = threading.Lock()

    def add(self, key: str, value: str) -> bool:
        with self._lock:
            return self.values.setdefault(key, value) is value

    def put(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> str | None:
        return self.values.get(key)

    def keys(self, prefix: str) -> list[str]:
        with self._lock:
            return [key for key in self.values if key.startswith(prefix)]

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_lease(store: FakeStore, owner: str, clock: Clock) -> Lease:
    return Lease(store, "leave/app/embed", owner=owner, lasts_s=60, now=clock)


def test_one_has_it_and_keeps_it_while_the_others_wait(clock: Clock):
    store = FakeStore()
    first, second = make_lease(store, "a", clock), make_lease(store, "b", clock)
    assert (first.take(), second.take(), first.take(), second.take()) == (True, False, True, False)


def test_a_holder_that_dies_loses_it_when_its_time_is_over(clock: Clock):
    store = FakeStore()
    assert make_lease(store, "a", clock).take()
    clock.now += 61
    assert make_lease(store, "b", clock).take()
    assert not make_lease(store, "a", clock).take(), "the old holder has lost it"


def test_it_can_be_given_back_by_its_holder_only(clock: Clock):
    store = FakeStore()
    first, second = make_lease(store, "a", clock), make_lease(store, "b", clock)
    assert first.take()
    second.give_back()
    assert not second.take()
    first.give_back()
    assert second.take()


def test_the_store_does_not_grow(clock: Clock):
    store = FakeStore()
    for number in range(20):
        assert make_lease(store, str(number), clock).take()
        clock.now += 61
    assert len(store.values) == 1


@pytest.mark.parametrize("junk", ["", "not json", "[]", '{"owner": "a"}', '{"owner": "a", "until": "later"}'])
def test_what_nobody_could_have_written_does_not_block_for_ever(junk: str, clock: Clock):
    store = FakeStore()
    store.put("leave/app/embed/7", junk)
    store.put("leave/app/embed/x", junk)
    assert make_lease(store, "b", clock).take()


def test_an_application_whose_name_begins_alike_has_a_lease_of_its_own(clock: Clock):
    store = FakeStore()
    assert Lease(store, "leave/app/embed-2", owner="x", lasts_s=60, now=clock).take()
    assert make_lease(store, "a", clock).take()


def test_of_many_that_ask_at_once_one_gets_it(clock: Clock):
    for _ in range(20):
        store = FakeStore()
        leases = [make_lease(store, str(number), clock) for number in range(8)]
        with ThreadPoolExecutor(max_workers=8) as pool:
            assert sum(pool.map(Lease.take, leases)) == 1


class Steps(FakeStore):
    """Hands over to the other taker before each operation, as a schedule says."""

    def __init__(self, schedule: list[bool]) -> None:
        super().__init__()
        self.schedule = iter(schedule)
        self.other: Lease | None = None
        self.other_took = False

    def _maybe_other(self) -> None:
        other = self.other
        if other and next(self.schedule, False):
            self.other = None
            self.other_took = other.take()

    def add(self, key: str, value: str) -> bool:
        self._maybe_other()
        return super().add(key, value)

    def keys(self, prefix: str) -> list[str]:
        self._maybe_other()
        return super().keys(prefix)

    def get(self, key: str) -> str | None:
        self._maybe_other()
        return super().get(key)


@given(st.integers(0, 8), st.integers(0, 3))
def test_wherever_another_taker_comes_between_at_most_one_has_it(place: int, expired: int):
    clock, store = Clock(), Steps([number == place for number in itertools.islice(itertools.count(), 9)])
    for number in range(expired):
        assert make_lease(store, f"old-{number}", clock).take()
        clock.now += 61
    store.other = make_lease(store, "b", clock)
    took = make_lease(store, "a", clock).take()
    assert not (took and store.other_took), "two at once would take two replicas out of a deployment"
