"""What programs in other languages see of the components. ``make golden`` writes the schema anew: a changed line in it
is a change for them."""

import dataclasses
import inspect
import json
import re
import typing
from importlib.metadata import version
from typing import Any

import pulumi
import pytest
from pulumi.provider.experimental.component import ComponentProvider
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

import eks_gpu_serving
from eks_gpu_serving import stack_args
from eks_gpu_serving.settings import (
    ApplicationSettings,
    ClusterSettings,
    KubeRaySettings,
    NodeGroupSettings,
    RaySettings,
    StackAutoscaling,
    StackModel,
    StackSettings,
)
from eks_gpu_serving.tokens import PACKAGE, token
from ray_model_serving.contract.settings import Limits, Variant

TWINS = {
    stack_args.GpuServingStackArgs: StackSettings,
    stack_args.ClusterSpec: ClusterSettings,
    stack_args.NodeGroupSpec: NodeGroupSettings,
    stack_args.ModelSpec: StackModel,
    stack_args.LimitsSpec: Limits,
    stack_args.AutoscalingSpec: StackAutoscaling,
    stack_args.VariantSpec: Variant,
    stack_args.ServingSpec: ApplicationSettings,
    stack_args.RaySpec: RaySettings,
    stack_args.KubeRaySpec: KubeRaySettings,
}


def components() -> list[type[pulumi.ComponentResource]]:
    return [getattr(eks_gpu_serving, name) for name in eks_gpu_serving.COMPONENTS]


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """The schema as the provider would serve it."""
    return json.loads(ComponentProvider(components(), PACKAGE, version=version(PACKAGE)).schema or "")


def test_schema(schema: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    golden = snapshot.use_extension(JSONSnapshotExtension)
    assert {**schema, "version": "<version>"} == golden


def test_every_component_is_served_under_its_own_token(schema: dict[str, Any]) -> None:
    assert set(schema["resources"]) == {token(name) for name in eks_gpu_serving.COMPONENTS}
    for component in components():
        source = inspect.getsource(component)
        assert f'token("{component.__name__}")' in source, "a provider serves no other token"


def test_the_package_exports_every_component_with_its_arguments() -> None:
    for name in eks_gpu_serving.__all__:
        assert getattr(eks_gpu_serving, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'GpuStack'"):
        _ = eks_gpu_serving.GpuStack


def docstrings(cls: type) -> dict[str, str]:
    """The text below each field, which the schema shows."""
    return dict(re.findall(r'^    (\w+): .+\n    """(.+)"""$', inspect.getsource(cls), flags=re.MULTILINE))


@pytest.mark.parametrize("spec", TWINS, ids=lambda cls: cls.__name__)
def test_arguments_and_settings_have_the_same_keys_and_descriptions(spec: type) -> None:
    fields = dataclasses.fields(typing.cast(Any, TWINS[spec]))
    assert docstrings(spec) == {field.name: field.metadata["doc"] for field in fields}


@pytest.mark.parametrize("spec", TWINS, ids=lambda cls: cls.__name__)
def test_arguments_and_settings_demand_the_same_keys(spec: type) -> None:
    required = {
        field.name
        for field in dataclasses.fields(typing.cast(Any, TWINS[spec]))
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    if dataclasses.is_dataclass(spec):
        demanded = {field.name for field in dataclasses.fields(spec) if field.default is dataclasses.MISSING}
    else:
        demanded = set(typing.cast(Any, spec).__required_keys__)
    assert demanded == required


def plain(hint: Any) -> Any:
    """A type without what only says that it may be left out; sequences and twins as the settings have them."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.NotRequired or type(None) in arguments:
        return plain(next(argument for argument in arguments if argument is not type(None)))
    if origin is not None and "Sequence" in str(origin):
        return tuple[plain(arguments[0]), ...]
    return TWINS.get(hint, hint)


@pytest.mark.parametrize("spec", TWINS, ids=lambda cls: cls.__name__)
def test_arguments_and_settings_have_the_same_types(spec: type) -> None:
    arguments, settings = (typing.get_type_hints(cls, include_extras=True) for cls in (spec, TWINS[spec]))
    assert {name: plain(arguments[name]) for name in arguments} == {name: plain(settings[name]) for name in arguments}
