"""Every input that we set is one that the provider's package declares.

Keyword arguments are checked by Python. A key inside a plain mapping is not: the engine would send it, and the provider
would refuse it, or ignore it, at the first real update.
"""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pulumi_kubernetes as kubernetes
import pytest

from harness import Graph, Record

GRAPH = Callable[..., Graph]


def camel(name: str) -> str:
    head, *rest = name.strip("_").split("_")
    return head + "".join(part.capitalize() for part in rest)


def resource_class(type_: str) -> Any:
    package, module, name = re.fullmatch(r"(\w+):([\w./]+):(\w+)", type_).groups()  # type: ignore[union-attr]
    if package == "aws":
        module = module.split("/")[0]
    if package == "kubernetes":
        module = {"helm.sh/v3": "helm.v3", "yaml/v2": "yaml.v2"}.get(module, module.replace("/", "."))
    path = f"pulumi_{package}" if module == "index" else f"pulumi_{package}.{module}"
    return getattr(importlib.import_module(path), name)


def declared(cls: Any) -> set[str]:
    """camelCase names of the inputs of a resource class, or of the properties of an arguments class."""
    if hasattr(cls, "_internal_init"):
        names = set(inspect.signature(cls._internal_init).parameters) - {"self", "resource_name", "opts"}
    else:
        names = set(inspect.signature(cls.__init__).parameters) - {"__self__", "self"}
    return {camel(name) for name in names} | {"apiVersion", "kind"}


def undeclared(record: Record) -> Iterator[str]:
    known = declared(resource_class(record.type))
    yield from (f"{record} {key}" for key in record.inputs if key not in known)
    if record.type.startswith("kubernetes:") and isinstance(record.inputs.get("metadata"), dict):
        metadata = declared(kubernetes.meta.v1.ObjectMetaArgs)
        yield from (f"{record} metadata.{key}" for key in record.inputs["metadata"] if key not in metadata)
    if record.type == "kubernetes:helm.sh/v3:Release":
        options = declared(kubernetes.helm.v3.RepositoryOptsArgs)
        yield from (f"{record} repositoryOpts.{key}" for key in record.inputs["repositoryOpts"] if key not in options)


def test_inputs_are_declared(environment: dict[str, Any], graph: GRAPH) -> None:
    checked = [
        record
        for record in graph(environment)
        if record.type.startswith(("aws:", "eks:", "kubernetes:")) and ":ray.io/" not in record.type
    ]
    assert len(checked) > 20
    assert [sentence for record in checked for sentence in undeclared(record)] == []


@pytest.mark.parametrize("key", ["repository", "repos"])
def test_a_key_that_no_package_declares_is_found(key: str, small_stack: Any, graph: GRAPH) -> None:
    release = graph(small_stack()).one("kubernetes:helm.sh/v3:Release", "serving-kuberay-release")
    bad: dict[str, Any] = {**release.inputs, "repositoryOpts": {key: "https://charts.example/"}}
    changed = dataclasses.replace(release, inputs=bad)
    assert list(undeclared(changed)) == [f"{release} repositoryOpts.{key}"]
