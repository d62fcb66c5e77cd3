"""The stack component, from the stack files of this checkout or from the small stack of the tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws
import pytest

from eks_gpu_serving import GpuServingStack, GpuServingStackArgs
from eks_gpu_serving.stack_files import find_project, stack_mapping
from harness import Graph, run

ENVIRONMENTS = Path(__file__).parents[3] / "infra" / "environments"
STACKS = ("dev", "staging", "prod")


@pytest.fixture(params=STACKS)
def environment(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The keys of each stack file in turn."""
    return stack_mapping(ENVIRONMENTS / f"Pulumi.{request.param}.yaml", find_project(ENVIRONMENTS))


def build(mapping: dict[str, Any], name: str = "serving") -> GpuServingStack:
    """The component with an explicit AWS provider, as a program would make it."""
    provider = aws.Provider(f"{name}-aws", region=mapping["region"])
    return GpuServingStack(name, GpuServingStackArgs(**mapping), pulumi.ResourceOptions(providers=[provider]))


@pytest.fixture
def graph() -> Callable[..., Graph]:
    """Everything that a mapping creates."""

    def graph_of(mapping: dict[str, Any], *, preview: bool = False) -> Graph:
        return run(lambda: build(mapping), preview=preview)

    return graph_of


@pytest.fixture
def builder() -> Callable[..., GpuServingStack]:
    """For checks that run a program themselves."""
    return build
