"""Settings are read strictly: every problem, with key, value and rule, in one error."""

import dataclasses
import datetime
import math
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_model_serving.contract.problems import Problems, SettingsError, nearest
from ray_model_serving.contract.reading import UnreadableError, read, readable, setting, to_mapping
from ray_model_serving.contract.settings import ServingSettings


class Colour(str, Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int = setting(doc="a size", minimum=1, maximum=10)


@dataclass(frozen=True, kw_only=True)
class Outer:
    RENAMED: ClassVar[Mapping[str, str]] = {"colour_name": "renamed: write colour"}

    name: str = setting(doc="a name", pattern=r"[a-z]+")
    ratio: float = setting(0.5, doc="a ratio", above=0, maximum=1, reason="it is a share")
    colour: Colour = setting(Colour.RED, doc="a colour")
    flag: bool = setting(False, doc="a flag")
    inner: Inner | None = setting(None, doc="an inner part")
    items: tuple[Inner, ...] = setting((), doc="several inner parts")
    labels: Mapping[str, str] = setting(dict, doc="labels")

    def check(self, path: str, problems: Problems) -> None:
        with suppress(UnreadableError):
            if self.name == "never":
                problems.add(path, "got never, must be another")
        with suppress(UnreadableError):
            if self.ratio == 1 and self.flag:
                problems.add("ratio", "got 1, excludes flag")
        sizes = readable(self.items, "size")
        if len(sizes) != len(set(sizes)):
            problems.add("items", "a size is used twice")


def read_outer(given: object) -> Outer:
    problems = Problems("a test")
    outer = read(Outer, given, "", problems)
    problems.raise_if_any()
    assert outer is not None
    return outer


def problem_with(given: object) -> str:
    with pytest.raises(SettingsError) as raised:
        read_outer(given)
    return raised.value.message


def test_every_problem_is_in_one_error():
    text = problem_with(
        {"name": "A", "ratio": 2, "colour": "green", "flag": 1, "inner": {"sise": 1}, "items": [{"size": 0}], "x": 1}
    )
    assert text.startswith("a test: 8 problems")
    for part in (
        "name: got 'A'",
        "ratio: got 2, must be above 0 and at most 1 (it is a share)",
        "colour: got 'green'",
        "flag: got 1, must be true or false",
        "inner.sise: unknown key; did you mean 'size'?",
        "inner.size: is required",
        "items[0].size: got 0, must be at least 1 and at most 10",
        "x: unknown key",
    ):
        assert part in text


def test_a_renamed_key_says_what_to_write_instead():
    assert "colour_name: unknown key; renamed: write colour" in problem_with({"name": "a", "colour_name": "red"})


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("ratio", True, "must be a number"),
        ("ratio", "0.5", "must be a number"),
        ("inner", [], "must be a mapping"),
        ("items", "text", "must be a list"),
        ("labels", {"a": 1}, "must be text (quote it, YAML reads it as"),
        ("labels", {True: "a"}, "got the key True, must be text (quote it"),
        ("name", datetime.date(2026, 1, 1), "must be text (quote it"),
        ("name", None, "got None, must be text"),
        ("labels", 3, "must be a mapping of text to text"),
        ("name", 3, "must be text"),
        ("colour", 3, "must be one of red, blue"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_the_type_it_must_have(key: str, value: object, rule: str):
    assert rule in problem_with({"name": "a", key: value})


def test_whole_floats_are_whole_numbers_since_pulumi_sends_all_numbers_as_floats():
    assert read_outer({"name": "a", "inner": {"size": 3.0}}).inner == Inner(size=3)
    assert "must be a whole number" in problem_with({"name": "a", "inner": {"size": 3.5}})


def test_a_rule_over_several_fields_runs_when_each_is_well_formed():
    assert "got never, must be another" in problem_with({"name": "never"})


def test_rules_run_over_what_is_well_formed_whatever_is_wrong_elsewhere():
    text = problem_with(
        {
            "name": "never",
            "colour": "green",
            "nmae": "a",
            "ratio": 1.0,
            "flag": True,
            "items": [{"size": 3}, {"size": "x"}, 7, {"size": 3, "colour": 1}],
        }
    )
    for part in ("got never", "got 1, excludes flag", "a size is used twice", "items[1].size", "items[2]: got 7"):
        assert part in text, "whoever mends one problem must not be met by the next"


def test_a_rule_over_a_field_that_is_not_well_formed_says_nothing():
    text = problem_with({"name": 3, "ratio": 1.0, "flag": "yes"})
    assert text.startswith("a test: 2 problems"), "the default in place of what was given would be judged"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, 10**5000], ids=range(5))
def test_a_number_that_is_not_finite_is_refused_with_its_key(value: float):
    assert "ratio: got" in problem_with({"name": "a", "ratio": value})
    assert "inner.size: got" in problem_with({"name": "a", "inner": {"size": value}})


def test_every_text_of_a_list_is_judged_with_its_index():
    @dataclass(frozen=True, kw_only=True)
    class Listed:
        names: tuple[str, ...] = setting(doc="names", pattern="[a-z]+")

    problems = Problems()
    assert read(Listed, {"names": ["a", "B", "c", ""]}, "", problems) is None
    assert [problem.path for problem in problems.found] == ["names[1]", "names[3]"]


def test_a_problem_of_the_whole_input_names_the_source():
    assert "- a test: got None, must be a mapping" in problem_with(None)


def test_an_unknown_word_repeats_no_list():
    text = problem_with({"name": "a", "colour": "reed"})
    assert "got 'reed', must be one of red, blue; did you mean 'red'?" in text
    assert problem_with({"name": "a", "colour": "x"}).endswith("got 'x', must be one of red, blue")


def test_a_value_of_any_depth_and_size_is_shown_within_bounds():
    bomb: list[Any] = []
    for _ in range(50):
        bomb = [bomb, bomb]
    assert len(problem_with({"name": bomb})) < 300


def settings_classes(cls: Any) -> set[Any]:
    parts = {cls}
    for hint in typing.get_type_hints(cls).values():
        for part in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(part):
                parts |= settings_classes(part)
    return parts


def test_every_number_of_the_serving_settings_is_bounded_on_both_sides():
    for cls in settings_classes(ServingSettings):
        for field in dataclasses.fields(cls):
            if field.type in (int, float, int | None, float | None):
                rule = field.metadata["rule"]
                assert rule.maximum is not None, f"{cls.__name__}.{field.name} may be 10**400"
                assert rule.minimum is not None or rule.above is not None, f"{cls.__name__}.{field.name}"


def test_long_values_are_cut_in_the_text():
    assert len(problem_with({"name": "A" * 5000})) < 300


def test_nearest_names_the_valid_ones_where_nothing_is_near():
    assert nearest("colr", ["colour", "size"]) == "did you mean 'colour'?"
    assert nearest("zzz", ["colour", "size"]) == "valid: colour, size"


@given(
    st.builds(
        Outer,
        name=st.from_regex(r"[a-z]+", fullmatch=True).filter(lambda name: name != "never"),
        ratio=st.floats(0, 1, exclude_min=True, exclude_max=True),
        colour=st.sampled_from(Colour),
        flag=st.booleans(),
        inner=st.none() | st.builds(Inner, size=st.integers(1, 10)),
        items=st.lists(st.integers(1, 10), max_size=3, unique=True).map(
            lambda sizes: tuple(Inner(size=s) for s in sizes)
        ),
        labels=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    )
)
def test_what_is_written_is_read_back(outer: Outer):
    assert read_outer(to_mapping(outer)) == outer


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(_JSON, st.dictionaries(st.sampled_from(["name", "ratio", "colour", "inner", "items", "labels"]), _JSON))
def test_any_other_input_is_a_settings_error_and_never_a_crash(anything: Any, fields: dict[str, Any]):
    for given_value in (anything, fields):
        with suppress(SettingsError):
            read_outer(given_value)
