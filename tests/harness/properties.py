"""Rules that every graph of ours keeps, whatever it creates.

    assert violations(graph, tags={"team": "search"}) == []
    assert collisions(lambda name: GpuNodeGroup(name, args)) == []

A rule looks at recorded inputs only and yields one sentence per violation. Run it for both preview modes: in a preview
unknown inputs are skipped, and a resource that is created inside ``.apply`` is missing, which ``same_resources`` shows.
"""

import functools
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.graph import UNKNOWN, Graph, Record
from harness.policies import iam_violations
from harness.running import run
from harness.texts import walk

OURS = "eks-gpu-serving:index:"
# Nodes per managed node group, EKS service quotas (docs.aws.amazon.com/eks/latest/userguide/service-quotas.html).
_MAX_NODES = 450
_OUTPUT_TEXTS = ("Calling __str__ on an Output", "Output[", "<pulumi.", "<Output")
_TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"


def violations(
    graph: Graph, *, tags: Mapping[str, str] | None = None, allow_star: frozenset[str] = frozenset()
) -> list[str]:
    """Every rule that the graph breaks, as sentences; empty where it keeps all.

    ``tags``: what every taggable AWS resource has to carry. ``allow_star``: ids (Sid) of IAM statements that may name
    the resource ``*``, because their actions know no other.
    """
    found = [sentence for rule in _RULES for sentence in rule(graph)]
    found += _untagged(graph, tags or {})
    found += [sentence for record in graph for sentence in iam_violations(record, allow_star)]
    return found


def same_resources(build: Callable[[], object], **options: Any) -> list[str]:
    """Resources that exist in one preview mode only: they are made inside ``.apply`` and no preview shows them."""
    updated, previewed = (Counter(run(build, preview=preview, **options).names()) for preview in (False, True))
    return [f"{type_} {name!r} is not in both modes" for type_, name in (updated - previewed) + (previewed - updated)]


def collisions(build: Callable[[str], object], names: tuple[str, str] = ("one", "two")) -> list[str]:
    """What two instances in one stack would fight over: URNs, and physical names that are set by hand."""
    graph = run(lambda: [build(name) for name in names])
    return [*_repeated_urns(graph), *_repeated_physical_names(graph)]


def _repeated_urns(graph: Graph) -> Iterator[str]:
    for urn, count in Counter(record.urn for record in graph).items():
        if count > 1:
            yield f"{urn} is registered {count} times"


def _repeated_physical_names(graph: Graph) -> Iterator[str]:
    names = ((record.type, *_physical_name(record)) for record in graph if record.custom)
    for key, count in Counter(key for key in names if key[2]).items():
        if count > 1:
            yield f"{key[0]}: {count} resources are called {key[2]!r}"


def _physical_name(record: Record) -> tuple[Any, Any]:
    metadata = record.inputs.get("metadata")
    if isinstance(metadata, dict):
        return metadata.get("namespace"), metadata.get("name")
    given = record.inputs.get("name") or record.inputs.get("nodeGroupName")
    return record.inputs.get("namespace"), None if given == UNKNOWN else given


def _orphans(graph: Graph) -> Iterator[str]:
    for record in graph:
        if record.type.startswith(("pulumi:providers:", OURS)):
            continue
        owner = next((a for a in graph.ancestors(record) if a.type.startswith(OURS)), None)
        if owner is None:
            yield f"{record} has none of our components as an ancestor"
        elif record.name != owner.name and not record.name.startswith(f"{owner.name}-"):
            yield f"{record} is not named after its component {owner.name!r}"


def _nested_names(graph: Graph) -> Iterator[str]:
    for record in graph:
        owner = next((a for a in graph.ancestors(record) if a.type.startswith(OURS)), None)
        if record.type.startswith(OURS) and owner and not record.name.startswith(owner.name):
            yield f"{record} is not named after its component {owner.name!r}"


def _silent_components(graph: Graph) -> Iterator[str]:
    for record in graph:
        if record.type.startswith(OURS) and record.outputs is None:
            yield f"{record} never calls register_outputs"


def _stray_texts(graph: Graph) -> Iterator[str]:
    for record in graph:
        parts = {"inputs": dict(record.inputs), "name": record.name, "outputs": dict(record.outputs or {})}
        for path, value in walk(parts):
            if not isinstance(value, str):
                continue
            for text in _OUTPUT_TEXTS:
                if text in value:
                    yield f"{record} {path}: an Output was turned into text ({value[:60]!r})"
            # The word alone is a value of some APIs (KubeRay's upgrade type); inside a text it is a lost output.
            if value != "None" and re.search(r"(?<![A-Za-z])None(?![A-Za-z])", value):
                yield f"{record} {path}: 'None' in {value[:80]!r}"


def _untagged(graph: Graph, tags: Mapping[str, str]) -> Iterator[str]:
    for record in graph:
        if not record.type.startswith("aws:"):
            continue
        found: list[tuple[str, Any]] = []
        if _is_taggable(record.type):
            found.append(("tags", record.inputs.get("tags")))
        if record.type == _TEMPLATE:
            given = {spec["resourceType"]: spec["tags"] for spec in record.inputs.get("tagSpecifications", [])}
            found += [(f"tags of {kind}s", given.get(kind)) for kind in ("instance", "volume")]
        for what, have in found:
            missing = {key for key, value in tags.items() if (have or {}).get(key) != value}
            if have != UNKNOWN and missing:
                yield f"{record} {what}: without {', '.join(sorted(missing))}"


@functools.cache
def _is_taggable(type_: str) -> bool:
    package, module, class_name = re.fullmatch(r"(\w+):(\w+)/\w+:(\w+)", type_).groups()  # type: ignore[union-attr]
    name = f"pulumi_{package}" if module == "index" else f"pulumi_{package}.{module}"
    resource: Any = getattr(importlib.import_module(name), class_name)
    return "tags" in inspect.signature(resource._internal_init).parameters


def _launch_templates(graph: Graph) -> Iterator[str]:
    for record in graph.of_type(_TEMPLATE):
        metadata = record.inputs.get("metadataOptions", {})
        if metadata.get("httpTokens") != "required" or metadata.get("httpPutResponseHopLimit") != 1:
            yield f"{record} metadataOptions: IMDSv2 with hop limit 1 keeps pods away from the node's role"
        volumes = record.inputs.get("blockDeviceMappings", [])
        if not volumes:
            yield f"{record} blockDeviceMappings: none, so the root volume is what the image says"
        for volume in volumes:
            if str(volume.get("ebs", {}).get("encrypted")).lower() != "true":
                yield f"{record} {volume.get('deviceName')}: not encrypted"


def _floating_versions(graph: Graph) -> Iterator[str]:
    for record in graph:
        if record.type.startswith("kubernetes:helm.sh/") and not re.fullmatch(
            r"v?\d+\.\d+\.\d+\S*", str(record.inputs.get("version"))
        ):
            yield f"{record} version: {record.inputs.get('version')!r} is not one chart version"
        if not record.type.startswith("kubernetes:"):
            continue
        for path, value in walk(dict(record.inputs)):
            if path.endswith(".image") and isinstance(value, str) and value != UNKNOWN:
                tag = value.rpartition("/")[2].partition(":")[2]
                if "@sha256:" not in value and tag in ("", "latest"):
                    yield f"{record} {path}: {value!r} has no fixed tag"


def _unbounded(graph: Graph) -> Iterator[str]:
    for record in graph.of_type("aws:eks/nodeGroup:NodeGroup"):
        size = record.inputs.get("scalingConfig", {}).get("maxSize")
        if not isinstance(size, int | float) or not 0 < size <= _MAX_NODES:
            yield f"{record} scalingConfig.maxSize: {size!r} is not a bound up to {_MAX_NODES}"
    for record in graph:
        for path, value in walk(dict(record.inputs)):
            if path.endswith(".workerGroupSpecs") and isinstance(value, list):
                for index, group in enumerate(value):
                    if not isinstance(group.get("maxReplicas"), int | float):
                        yield f"{record} {path}[{index}]: no maxReplicas"


_RULES: tuple[Callable[[Graph], Iterator[str]], ...] = (
    _repeated_urns,
    _repeated_physical_names,
    _orphans,
    _nested_names,
    _silent_components,
    _stray_texts,
    _launch_templates,
    _floating_versions,
    _unbounded,
)
