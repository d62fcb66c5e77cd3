"""The operator and its definitions: what is installed, and from where."""

import json
from pathlib import Path
from typing import Any

import pulumi
import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from eks_gpu_serving.kuberay import KubeRayOperator, KubeRayOperatorArgs
from eks_gpu_serving.kuberay_values import CRD_FILES, crd_files, kuberay_values
from eks_gpu_serving.settings import KubeRaySettings
from harness import PREVIEW_MODES, Graph, run
from harness.properties import collisions, same_resources, violations

CONFIG_GROUP = "kubernetes:yaml/v2:ConfigGroup"
RELEASE = "kubernetes:helm.sh/v3:Release"


def build(name: str = "kuberay", **changes: Any) -> KubeRayOperator:
    return KubeRayOperator(name, KubeRayOperatorArgs(watch_namespace="ray-serving", **changes))


def graph(preview: bool = False, **changes: Any) -> Graph:
    return run(lambda: build(**changes), preview=preview)


@pytest.mark.parametrize("preview", PREVIEW_MODES)
def test_it_keeps_the_rules_of_every_graph(preview: bool) -> None:
    assert violations(graph(preview)) == []
    assert same_resources(build) == []


def test_two_operators_with_their_own_namespaces_do_not_collide() -> None:
    assert collisions(lambda name: build(name, namespace=f"{name}-system")) == []


@pytest.mark.parametrize("version", ["1.6.2", "1.7.0"])
def test_definitions_and_operator_are_of_one_version(version: str) -> None:
    found = graph(chart_version=version)
    release = found.one(RELEASE)
    assert release.inputs["version"] == version
    assert release.inputs["values"]["image"]["tag"] == f"v{version}"
    assert all(f"/v{version}/" in address for address in found.one(CONFIG_GROUP).inputs["files"])


def test_helm_leaves_the_definitions_alone_and_they_come_first() -> None:
    found = graph()
    release, definitions = found.one(RELEASE), found.one(CONFIG_GROUP)
    assert release.inputs["skipCrds"] is True, "Helm installs crds/ once and never upgrades it"
    assert definitions.urn in release.dependencies


def test_destroying_a_stack_leaves_the_definitions() -> None:
    assert graph().one(CONFIG_GROUP).retain_on_delete, "deleting a definition deletes the RayServices of everyone"


def test_definitions_come_from_a_directory_where_there_is_no_internet(tmp_path: Path) -> None:
    files = graph(crd_source=f"{tmp_path}/").one(CONFIG_GROUP).inputs["files"]
    assert files == [f"{tmp_path}/{name}" for name in CRD_FILES]


def test_a_version_that_was_not_tried_is_refused() -> None:
    with pytest.raises(pulumi.InputPropertiesError, match=r"chart_version: got '2\.0\.0', must match"):
        graph(chart_version="2.0.0")


def test_values_are_those_of_the_golden_file(snapshot: SnapshotAssertion) -> None:
    golden = snapshot.use_extension(JSONSnapshotExtension)
    assert {
        "values": kuberay_values(KubeRaySettings(), "ray-serving"),
        "definitions": crd_files(KubeRaySettings()),
    } == golden


def test_the_operator_is_guaranteed_its_resources_and_watches_one_namespace() -> None:
    values = json.loads(json.dumps(kuberay_values(KubeRaySettings(), "ray-serving")))
    assert values["resources"]["limits"] == values["resources"]["requests"]
    assert values["watchNamespace"] == ["ray-serving"]
    assert values["singleNamespaceInstall"] is False, "true would watch, and be allowed in, its own namespace only"
    assert "tolerations" not in values, "it belongs on system nodes"
