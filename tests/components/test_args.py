"""Arguments of components, from Python and from hosts of other languages."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pulumi
import pytest

from eks_gpu_serving.args import raise_problems, read_args
from eks_gpu_serving.tokens import token
from harness import run


class Color(str, Enum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True, kw_only=True)
class ThingArgs:
    name: pulumi.Input[str]
    count: int
    color: Color | None = None
    tags: Mapping[str, str] | None = None


def problems(given: object) -> list[tuple[str, str]]:
    with pytest.raises(pulumi.InputPropertiesError) as caught:
        read_args(ThingArgs, given, "Thing 'x'")
    errors = [(error["property_path"], error["reason"]) for error in caught.value.errors or []]
    for path, reason in errors:
        assert f"{path}: {reason}" in caught.value.message, "programs that print only the message need it all"
    return errors


def test_a_dataclass_comes_back_equal() -> None:
    given = ThingArgs(name="a", count=1, color=Color.RED, tags={"k": "v"})

    assert read_args(ThingArgs, given, "Thing") == given


def test_a_mapping_from_a_host_becomes_the_dataclass() -> None:
    given = {"name": "a", "count": 3.0, "color": "green", "tags": None}

    args = read_args(ThingArgs, given, "Thing")

    assert args == ThingArgs(name="a", count=3, color=Color.GREEN)
    assert isinstance(args.count, int), "a float would turn sizes into 3.0 in documents"


def test_outputs_are_passed_on_untouched() -> None:
    def build() -> None:
        output: Any = pulumi.Output.from_input("a")
        assert read_args(ThingArgs, {"name": output, "count": 1}, "Thing").name is output

    run(build)


def test_every_problem_is_reported_at_once() -> None:
    given = {"nmae": "a", "count": 1.5, "color": "blue"}

    assert problems(given) == [
        ("nmae", "unknown; did you mean 'name'?"),
        ("name", "is required"),
        ("count", "got 1.5, must be a whole number"),
        ("color", "got 'blue', must be one of red, green"),
    ]


def test_nothing_is_raised_where_nothing_was_found() -> None:
    raise_problems("Thing", [])


def test_tokens_have_the_form_that_a_provider_serves() -> None:
    assert token("GpuNodeGroup") == "eks-gpu-serving:index:GpuNodeGroup"
