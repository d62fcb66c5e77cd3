"""NvidiaDevicePlugin under mocks."""

import json
from typing import Any

import pulumi
import pulumi_kubernetes as k8s
import pytest
from syrupy.assertion import SnapshotAssertion

from eks_gpu_serving.accelerators import NvidiaDevicePlugin, NvidiaDevicePluginArgs
from eks_gpu_serving.device_plugin_values import device_plugin_values
from eks_gpu_serving.nodes.gpu_node_group import GpuNodeGroup, GpuNodeGroupArgs
from eks_gpu_serving.nodes.names import OperatingSystem
from harness import PREVIEW_MODES, run
from harness.properties import collisions, same_resources, violations

RELEASE = "kubernetes:helm.sh/v3:Release"


def labels_and_taints(system: OperatingSystem) -> tuple[dict[str, str], list[dict[str, str]]]:
    args = GpuNodeGroupArgs(
        cluster_name="c", subnet_ids=["s"], instance_type="g6.xlarge", max_nodes=1, operating_system=system
    )
    inputs = run(lambda: GpuNodeGroup("pool", args)).one("aws:eks/nodeGroup:NodeGroup").inputs
    return inputs["labels"], inputs["taints"]


def runs_on(labels: dict[str, str]) -> bool:
    required = device_plugin_values()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    (expression,) = term["matchExpressions"]
    assert expression["operator"] == "In"
    return labels.get(expression["key"]) in expression["values"]


def plugin(name: str = "plugin", opts: pulumi.ResourceOptions | None = None) -> NvidiaDevicePlugin:
    return NvidiaDevicePlugin(name, NvidiaDevicePluginArgs(), opts)


@pytest.mark.parametrize("preview", PREVIEW_MODES)
def test_it_keeps_the_rules_of_every_graph(preview: bool) -> None:
    assert violations(run(plugin, preview=preview)) == []
    assert same_resources(plugin) == []
    assert collisions(plugin) == []


def test_the_chart_is_pinned() -> None:
    inputs = run(plugin).one(RELEASE).inputs

    assert (inputs["chart"], inputs["version"]) == ("nvidia-device-plugin", "0.18.2")
    assert inputs["repositoryOpts"] == {"repo": "https://nvidia.github.io/k8s-device-plugin"}
    assert inputs["values"] == device_plugin_values()


def test_it_runs_where_the_image_has_no_plugin_and_nowhere_else() -> None:
    al2023, taints = labels_and_taints(OperatingSystem.AL2023)
    bottlerocket, _ = labels_and_taints(OperatingSystem.BOTTLEROCKET)

    assert runs_on(al2023), "without a plugin the node offers no GPU and its pods stay pending"
    assert not runs_on(bottlerocket), "two plugins would fight over kubelet's socket"
    assert not runs_on({}), "system nodes and foreign GPU nodes are not ours to manage"
    (toleration,) = device_plugin_values()["tolerations"]
    assert [toleration["key"]] == [taint["key"] for taint in taints]


def test_it_uses_the_provider_that_it_is_given() -> None:
    def build() -> None:
        provider = k8s.Provider("serving", kubeconfig="{}")
        plugin(opts=pulumi.ResourceOptions(providers=[provider]))

    release = run(build).one(RELEASE)

    assert release.provider.split("::")[3] == "serving", "the ambient cluster may be another one"


@pytest.mark.parametrize("version", ["latest", "0.18", ">=0.18.0", "0.16.0"])
def test_a_version_that_is_not_one_version_is_refused(version: str) -> None:
    with pytest.raises(pulumi.InputPropertiesError, match="chart_version"):
        run(lambda: NvidiaDevicePlugin("plugin", NvidiaDevicePluginArgs(chart_version=version)))


def test_it_works_when_hosted_for_another_language() -> None:
    hosted: Any = {"chart_version": "0.18.1", "namespace": "gpu"}

    inputs = run(lambda: NvidiaDevicePlugin("plugin", hosted)).one(RELEASE).inputs

    assert (inputs["version"], inputs["namespace"]) == ("0.18.1", "gpu")


def test_golden_values(snapshot: SnapshotAssertion) -> None:
    assert json.dumps(device_plugin_values(), indent=2) == snapshot
