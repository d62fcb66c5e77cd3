"""The bookkeeping of variants: bytes are never promised twice, and what is in use stays."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ray_model_serving.serving.variant_cache import TooLargeError, VariantCache

NAMES = st.sampled_from("abcde")
BUDGET = 10


def loaded(cache: VariantCache, name: str, size: int) -> None:
    cache.pin(name)
    assert cache.reserve(name, size)
    cache.loaded(name)
    cache.unpin(name)


def test_the_least_recently_used_goes_by_bytes_and_not_by_count():
    cache = VariantCache(BUDGET)
    loaded(cache, "a", 2)
    loaded(cache, "b", 2)
    loaded(cache, "c", 6)
    cache.pin("a")
    cache.unpin("a")
    assert not cache.reserve("d", 2)
    assert cache.idle() == ["b"], "one small one makes room for a small one, and a was used since"
    cache.remove("b")
    assert cache.reserve("d", 2)


def test_one_large_one_sends_as_many_away_as_it_needs():
    cache = VariantCache(BUDGET)
    for name in "abcde":
        loaded(cache, name, 2)
    assert not cache.reserve("f", 5)
    assert cache.idle() == ["a", "b", "c"]


def test_one_without_users_goes_before_an_older_one_in_use():
    cache = VariantCache(BUDGET)
    loaded(cache, "a", 5)
    cache.pin("a")
    loaded(cache, "b", 5)
    assert not cache.reserve("c", 5)
    assert (cache.idle(), cache.is_leaving("a")) == (["b"], False)


def test_one_in_use_stays_until_its_last_user_is_done_and_takes_no_new_ones():
    cache = VariantCache(BUDGET)
    loaded(cache, "a", 8)
    cache.pin("a")
    assert not cache.reserve("b", 8)
    assert cache.idle() == []
    assert cache.is_leaving("a"), "constant traffic for one would keep another out for ever"
    cache.unpin("a")
    assert cache.idle() == ["a"]


def test_one_that_fits_exactly_fits_and_one_byte_more_never_does():
    cache = VariantCache(BUDGET)
    assert cache.reserve("a", BUDGET)
    with pytest.raises(TooLargeError, match="11 bytes are over the 10"):
        cache.reserve("b", BUDGET + 1)
    assert not cache.idle(), "nobody has to go for one that can't come"


def test_a_load_that_failed_gives_its_bytes_back():
    cache = VariantCache(BUDGET)
    cache.pin("a")
    assert cache.reserve("a", 8)
    assert not cache.reserve("b", 8), "a load under way is not interrupted"
    assert not cache.is_leaving("a")
    cache.give_back("a")
    assert cache.reserve("b", 8)
    assert cache.users_of("a") == 1


class Machine(RuleBasedStateMachine):
    """Any order of requests, loads, failures and unloads."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = VariantCache(BUDGET)
        self.users: dict[str, int] = {}
        self.loading: set[str] = set()
        self.resident: dict[str, int] = {}
        self.recent: list[str] = []

    @rule(name=NAMES)
    def begin(self, name: str) -> None:
        if not self.cache.is_leaving(name):
            self.cache.pin(name)
            self.users[name] = self.users.get(name, 0) + 1
            self.recent = [one for one in self.recent if one != name] + [name]

    @precondition(lambda self: any(self.users.values()))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, count in self.users.items() if count)))
        self.cache.unpin(name)
        self.users[name] -= 1

    @rule(name=NAMES, size=st.integers(0, BUDGET + 2))
    def load(self, name: str, size: int) -> None:
        if not self.users.get(name) or name in self.loading or name in self.resident or self.cache.is_leaving(name):
            return
        left_before = {one for one in self.resident if self.cache.is_leaving(one)}
        if size > BUDGET:
            with pytest.raises(TooLargeError):
                self.cache.reserve(name, size)
            return
        if self.cache.reserve(name, size):
            self.loading.add(name)
            self.resident[name] = size
            return
        told = [one for one in self.resident if self.cache.is_leaving(one) and one not in left_before]
        assert not set(told) & self.loading, "a load under way is never interrupted"
        staying = [one for one in self.resident if not self.cache.is_leaving(one) and one not in self.loading]
        for one in told:
            for other in staying:
                older = self.recent.index(one) < self.recent.index(other)
                in_use = bool(self.users.get(one)), bool(self.users.get(other))
                assert self.resident[other] == 0 or in_use == (False, True) or (in_use[0] == in_use[1] and older)

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), well=st.booleans())
    def load_ends(self, data: st.DataObject, well: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.loading)))
        self.loading.remove(name)
        if well:
            self.cache.loaded(name)
        else:
            self.cache.give_back(name)
            del self.resident[name]

    @rule()
    def unload_what_has_to_go(self) -> None:
        for name in self.cache.idle():
            self.cache.remove(name)
            self.resident.pop(name, None)

    @invariant()
    def the_budget_holds_and_no_byte_is_lost(self) -> None:
        assert self.cache.taken_bytes == sum(self.resident.values()) <= BUDGET

    @invariant()
    def what_is_in_use_or_loading_is_never_unloaded(self) -> None:
        for name in self.cache.idle():
            assert not self.users.get(name)
            assert name not in self.loading


Machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyOrder = Machine.TestCase
