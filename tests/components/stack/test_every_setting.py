"""Every key of a stack file has a place where it shows: set to something else than its default, it is found in what the
stack registers. A key that nothing reads would be accepted and ignored."""

import dataclasses
import typing
from collections.abc import Callable
from typing import Any

import pytest
import yaml

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
from harness import Graph
from ray_model_serving.contract.settings import Limits, Variant

GRAPH = Callable[..., Graph]
SNAPSHOT = "0123456789abcdef0123456789abcdef"
KEY = "arn:aws:kms:us-east-1:123456789012:key/0a1b2c3d-0000-0000-0000-000000000000"
SUBNETS = ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]


def inputs(found: Graph, kind: str, part: str = "") -> Any:
    (record,) = [record for record in found if record.type.endswith(f":{kind}") and part in record.name]
    return record.inputs


def ray(found: Graph) -> Any:
    return inputs(found, "RayService")["spec"]["rayClusterConfig"]


def worker(found: Graph) -> Any:
    return ray(found)["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]


def application(found: Graph) -> Any:
    return yaml.safe_load(inputs(found, "RayService")["spec"]["serveConfigV2"])["applications"][0]


def model(found: Graph) -> Any:
    return application(found)["args"]["models"][0]


def deployment(found: Graph) -> Any:
    return application(found)["deployments"][0]


def nodes(found: Graph) -> Any:
    return inputs(found, "NodeGroup", "-pool-nodes" if "-pool-" in str(found.names()) else "-l4-nodes")


def prefetch(found: Graph) -> str:
    return inputs(found, "ConfigMap")["data"]["l4.json"]


def system(found: Graph) -> Any:
    return inputs(found, "NodeGroup", "-cluster-system-nodes")


def template(found: Graph) -> Any:
    return inputs(found, "LaunchTemplate", "-l4-template")


def policy(found: Graph) -> str:
    return inputs(found, "RolePolicy")["policy"]


def eks(found: Graph) -> Any:
    return inputs(found, "Cluster")


def trust(found: Graph) -> str:
    return inputs(found, "Role", "-models-role")["assumeRolePolicy"]


# Class and key -> what to write there (and besides), where to look, and what to find.
TABLE: dict[tuple[type, str], tuple[Any, Callable[[Graph], Any], Any]] = {
    (StackSettings, "environment"): ("staging", lambda g: eks(g)["tags"]["environment"], "staging"),
    (StackSettings, "name"): ("search", lambda g: inputs(g, "RayService")["metadata"]["name"], "search-dev"),
    (StackSettings, "region"): ("eu-west-1", lambda g: worker(g)["env"][0]["value"], "eu-west-1"),
    (StackSettings, "tags"): ({"team": "x"}, lambda g: template(g)["tags"]["team"], "x"),
    (StackSettings, "models_kms_key_arns"): ([KEY], lambda g: KEY in policy(g), True),
    (ClusterSettings, "existing_name"): ("shared", lambda g: nodes(g)["clusterName"], "shared"),
    (ClusterSettings, "kubernetes_version"): ("1.36", lambda g: eks(g)["version"], "1.36"),
    (ClusterSettings, "vpc_id"): ("vpc-0123456789abcdef0", lambda g: eks(g)["vpcId"], "vpc-0123456789abcdef0"),
    (ClusterSettings, "private_subnet_ids"): (
        SUBNETS,
        lambda g: (system(g)["subnetIds"], nodes(g)["subnetIds"]),
        (SUBNETS, SUBNETS),
    ),
    (ClusterSettings, "endpoint_public_access"): (False, lambda g: eks(g)["endpointPublicAccess"], False),
    (ClusterSettings, "public_access_cidrs"): (
        ["192.0.2.0/24"],
        lambda g: eks(g)["publicAccessCidrs"],
        ["192.0.2.0/24"],
    ),
    (ClusterSettings, "system_instance_type"): ("m7i.2xlarge", lambda g: system(g)["instanceTypes"], ["m7i.2xlarge"]),
    (ClusterSettings, "system_nodes"): (3, lambda g: system(g)["scalingConfig"]["desiredSize"], 3),
    (NodeGroupSettings, "name"): ("pool", lambda g: nodes(g)["labels"]["eks-gpu-serving/pool"], "pool"),
    (NodeGroupSettings, "instance_type"): ("g6.2xlarge", lambda g: nodes(g)["instanceTypes"], ["g6.2xlarge"]),
    (NodeGroupSettings, "operating_system"): (
        "bottlerocket",
        lambda g: nodes(g)["amiType"],
        "BOTTLEROCKET_x86_64_NVIDIA",
    ),
    (NodeGroupSettings, "min_nodes"): (1, lambda g: nodes(g)["scalingConfig"]["minSize"], 1),
    (NodeGroupSettings, "max_nodes"): (7, lambda g: nodes(g)["scalingConfig"]["maxSize"], 7),
    (NodeGroupSettings, "capacity_type"): ("spot", lambda g: nodes(g)["capacityType"], "SPOT"),
    (NodeGroupSettings, "ami_release_version"): (
        "1.35.0-20260520",
        lambda g: nodes(g)["releaseVersion"],
        "1.35.0-20260520",
    ),
    (NodeGroupSettings, "ami_id"): ("ami-0123456789abcdef0", lambda g: template(g)["imageId"], "ami-0123456789abcdef0"),
    (NodeGroupSettings, "root_volume_gib"): (
        200,
        lambda g: template(g)["blockDeviceMappings"][0]["ebs"]["volumeSize"],
        200,
    ),
    (NodeGroupSettings, "cache_budget_gib"): (50, lambda g: application(g)["args"]["cache_budget_bytes"], 50 * 1024**3),
    (NodeGroupSettings, "pod_memory_gib"): (9, lambda g: worker(g)["resources"]["limits"]["memory"], str(9 * 1024**3)),
    (StackModel, "name"): ("rank", lambda g: deployment(g)["name"], "rank"),
    (StackModel, "route"): ("/rank", lambda g: application(g)["route_prefix"], "/rank"),
    (StackModel, "model_class"): ("a.b:C", lambda g: model(g)["model_class"], "a.b:C"),
    (StackModel, "uri"): (
        "s3://other/m/",
        lambda g: (model(g)["uri"], "other/m/*" in policy(g)),
        ("s3://other/m/", True),
    ),
    (StackModel, "snapshot_id"): (SNAPSHOT, lambda g: model(g)["snapshot_id"], SNAPSHOT),
    (StackModel, "include"): (["*.json"], lambda g: model(g)["include"], ["*.json"]),
    (StackModel, "exclude"): (["*.md"], lambda g: model(g)["exclude"], ["*.md"]),
    (StackModel, "dtype"): ("float16", lambda g: model(g)["dtype"], "float16"),
    (StackModel, "keep_converted"): (False, lambda g: model(g)["keep_converted"], False),
    (StackModel, "resident_gib"): (2, lambda g: model(g)["resident_bytes"], 2 * 1024**3),
    (StackModel, "device"): ("cpu", lambda g: model(g)["device"], "cpu"),
    (StackModel, "node_group"): ("l4", lambda g: ray(g)["workerGroupSpecs"][0]["groupName"], "l4"),
    (StackModel, "load_mode"): ("background", lambda g: model(g)["load_mode"], "background"),
    (StackModel, "weights_gib"): (2, lambda g: model(g)["weights_bytes"], 2 * 1024**3),
    (StackModel, "host_peak_gib"): (2, lambda g: model(g)["host_peak_bytes"], 2 * 1024**3),
    (StackModel, "gpu_gib"): (3, lambda g: model(g)["gpu_bytes"], 3 * 1024**3),
    (StackModel, "request_gib"): (0.125, lambda g: model(g)["request_bytes"], 128 * 1024**2),
    (StackModel, "num_cpus"): (2, lambda g: deployment(g)["ray_actor_options"]["num_cpus"], 2),
    (StackModel, "num_gpus"): (0.5, lambda g: deployment(g)["ray_actor_options"]["num_gpus"], 0.5),
    (StackModel, "min_replicas"): (2, lambda g: deployment(g)["autoscaling_config"]["min_replicas"], 2),
    (StackModel, "surge"): (True, lambda g: deployment(g)["max_surge_percent"], 1),
    (StackModel, "max_replicas"): (3, lambda g: ray(g)["workerGroupSpecs"][0]["maxReplicas"], 3),
    (Limits, "max_ongoing_requests"): (5, lambda g: model(g)["limits"]["max_ongoing_requests"], 5),
    (Limits, "max_queued_requests"): (5, lambda g: deployment(g)["max_queued_requests"], 5),
    (Limits, "max_batch_size"): (5, lambda g: model(g)["limits"]["max_batch_size"], 5),
    (Limits, "batch_wait_s"): (0.5, lambda g: model(g)["limits"]["batch_wait_s"], 0.5),
    (Limits, "request_deadline_s"): (50, lambda g: deployment(g)["graceful_shutdown_timeout_s"], 60),
    (Limits, "max_batch_cost"): (4096, lambda g: model(g)["limits"]["max_batch_cost"], 4096),
    (Limits, "busy_status"): (429, lambda g: model(g)["limits"]["busy_status"], 429),
    (Limits, "max_body_bytes"): (5, lambda g: model(g)["limits"]["max_body_bytes"], 5),
    (StackAutoscaling, "target_ongoing_requests"): (
        3,
        lambda g: deployment(g)["autoscaling_config"]["target_ongoing_requests"],
        3,
    ),
    (StackAutoscaling, "look_back_period_s"): (
        11,
        lambda g: deployment(g)["autoscaling_config"]["look_back_period_s"],
        11,
    ),
    (StackAutoscaling, "upscale_delay_s"): (99, lambda g: deployment(g)["autoscaling_config"]["upscale_delay_s"], 99),
    (StackAutoscaling, "downscale_delay_s"): (
        999,
        lambda g: deployment(g)["autoscaling_config"]["downscale_delay_s"],
        999,
    ),
    (StackAutoscaling, "max_step"): (
        2,
        lambda g: deployment(g)["autoscaling_config"]["policy"]["policy_kwargs"]["max_step"],
        2,
    ),
    (StackAutoscaling, "load_time_s"): (
        400,
        lambda g: (
            model(g)["autoscaling"]["load_time_s"],
            deployment(g)["autoscaling_config"]["downscale_delay_s"],
        ),
        (400, 800),
    ),
    (Variant, "name"): ("legal", lambda g: model(g)["variants"][0]["name"], "legal"),
    (Variant, "uri"): (
        "s3://tuned/legal/",
        lambda g: (model(g)["variants"][0]["uri"], "tuned/legal/*" in policy(g), "s3://tuned/legal/" in prefetch(g)),
        ("s3://tuned/legal/", True, True),
    ),
    (Variant, "snapshot_id"): (
        SNAPSHOT,
        lambda g: (model(g)["variants"][0]["snapshot_id"], SNAPSHOT in prefetch(g)),
        (SNAPSHOT, True),
    ),
    (ApplicationSettings, "loads_at_once_per_node"): (2, lambda g: application(g)["args"]["loads_at_once_per_node"], 2),
    (ApplicationSettings, "memory_guard_fraction"): (
        0.9,
        lambda g: application(g)["args"]["memory_guard_fraction"],
        0.9,
    ),
    (ApplicationSettings, "rate_cap_mib_per_s"): (
        100,
        lambda g: (application(g)["args"]["rate_cap_bytes_per_s"], str(100 * 1024**2) in prefetch(g)),
        (100 * 1024**2, True),
    ),
    (ApplicationSettings, "trace_endpoint"): (
        "http://collector.observability:4318",
        lambda g: application(g)["args"]["trace_endpoint"],
        "http://collector.observability:4318",
    ),
    (RaySettings, "image"): ("r/other:2-ray2.60.0", lambda g: worker(g)["image"], "r/other:2-ray2.60.0"),
    (RaySettings, "version"): ("2.60.0", lambda g: ray(g)["rayVersion"], "2.60.0"),
    (RaySettings, "namespace"): (
        "mine",
        lambda g: (inputs(g, "RayService")["metadata"]["namespace"], "mine:" in trust(g)),
        ("mine", True),
    ),
    (RaySettings, "upgrade"): (
        "new_cluster",
        lambda g: inputs(g, "RayService")["spec"]["upgradeStrategy"]["type"],
        "NewCluster",
    ),
    (RaySettings, "head_cpus"): (
        1,
        lambda g: ray(g)["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"],
        "1",
    ),
    (RaySettings, "head_memory_gib"): (
        9,
        lambda g: ray(g)["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"],
        str(9 * 1024**3),
    ),
    (KubeRaySettings, "chart_version"): (
        "1.7.0",
        lambda g: inputs(g, "Release", "-kuberay-release")["version"],
        "1.7.0",
    ),
    (KubeRaySettings, "namespace"): ("ops", lambda g: inputs(g, "Release", "-kuberay-release")["namespace"], "ops"),
    (KubeRaySettings, "crd_source"): (
        "/crds",
        lambda g: inputs(g, "ConfigGroup")["files"][0],
        "/crds/ray.io_rayclusters.yaml",
    ),
}
# What a value needs beside it.
BESIDE: dict[tuple[type, str], dict[str, Any]] = {
    (ClusterSettings, "vpc_id"): {"private_subnet_ids": SUBNETS},
    (StackModel, "device"): {"num_gpus": 0},
    (StackModel, "min_replicas"): {"max_replicas": 2},
    (StackModel, "resident_gib"): {"variants": [{"name": "x", "uri": "s3://models/x/"}]},
    (Variant, "name"): {"uri": "s3://models/x/"},
    (Variant, "uri"): {"name": "x"},
    (Variant, "snapshot_id"): {"name": "x", "uri": "s3://models/x/"},
}


PARTS = {ClusterSettings: "cluster", KubeRaySettings: "kuberay", ApplicationSettings: "serving"}


def stack_with(cls: Any, key: str, value: Any, small_stack: Any) -> dict[str, Any]:
    change = {key: value, **BESIDE.get((cls, key), {})}
    room = {"max_nodes": 4}
    if cls is NodeGroupSettings:
        return small_stack(pool={**room, **change})
    if cls in (StackModel, Limits, StackAutoscaling, Variant):
        if cls is Variant:
            return small_stack(pool=room, model={"variants": [change]})
        part = "limits" if cls is Limits else "autoscaling" if cls is StackAutoscaling else None
        return small_stack(pool=room, model={part: change} if part else change)
    if cls is RaySettings:
        return small_stack(pool=room, ray=change)
    part = PARTS.get(cls)
    return small_stack(pool=room, **({part: change} if part else change))


@pytest.mark.parametrize("case", TABLE, ids=lambda case: f"{case[0].__name__}.{case[1]}")
def test_a_setting_shows_in_what_is_registered(case: tuple[type, str], small_stack: Any, graph: GRAPH) -> None:
    value, look, expected = TABLE[case]
    mapping = stack_with(*case, value, small_stack)
    assert look(graph(mapping)) == expected


def test_every_setting_is_in_the_table() -> None:
    parts = (StackSettings, ClusterSettings, NodeGroupSettings, StackModel, Variant, Limits, StackAutoscaling)
    nested = {"cluster", "node_groups", "models", "serving", "ray", "kuberay", "variants", "limits", "autoscaling"}
    known = {
        (part, field.name)
        for part in (*parts, ApplicationSettings, RaySettings, KubeRaySettings)
        for field in dataclasses.fields(typing.cast(Any, part))
        if field.name not in nested
    }
    assert known == set(TABLE)
