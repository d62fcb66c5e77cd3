"""What the operator refuses only after the object was accepted (ray-operator, validation.go and pod.go, v1.7.0).

An update would end with a time-out that says nothing, so our manifest never breaks one of these rules.
"""

import re
from collections.abc import Callable
from typing import Any

from eks_gpu_serving.planning.capacity import CapacityPlan
from eks_gpu_serving.planning.plan import plan
from eks_gpu_serving.ray_service.manifest import ray_service
from eks_gpu_serving.settings import StackSettings

MAX_RAY_SERVICE_NAME = 47
DNS_1035 = r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"
# Set by the operator; given by us they would win over it, or are refused.
OPERATORS_OWN = {
    "RAY_REDIS_ADDRESS",
    "REDIS_PASSWORD",
    "REDIS_USERNAME",
    "RAY_enable_autoscaler_v2",
    "RAY_CLUSTER_NAME",
}


def pods(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = manifest["spec"]["rayClusterConfig"]
    return [g["template"]["spec"] for g in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def test_the_name_leaves_room_for_what_kuberay_appends(manifest: dict[str, Any]) -> None:
    name = manifest["metadata"]["name"]
    assert len(name) <= MAX_RAY_SERVICE_NAME
    assert re.fullmatch(DNS_1035, name)


def test_every_worker_group_is_bounded(manifest: dict[str, Any], capacity: CapacityPlan) -> None:
    for pool, group in zip(capacity.pools, manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"], strict=True):
        assert 0 <= group["minReplicas"] <= group["maxReplicas"]
        assert (group["minReplicas"], group["maxReplicas"]) == (pool.min_pods, pool.max_pods)
        assert re.fullmatch(DNS_1035, group["groupName"])


def test_resources_are_stated_once(manifest: dict[str, Any]) -> None:
    cluster = manifest["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert "resources" not in group, "excludes num-cpus, num-gpus and memory in rayStartParams"
        assert "labels" not in group["rayStartParams"]
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_the_autoscaler_version_is_written_down_with_the_policy_that_it_demands(manifest: dict[str, Any]) -> None:
    cluster = manifest["spec"]["rayClusterConfig"]
    assert cluster["enableInTreeAutoscaling"] is True
    assert cluster["autoscalerOptions"]["version"] == "v2"
    assert [pod["restartPolicy"] for pod in pods(manifest)] == ["Never"] * len(pods(manifest))


def test_nothing_is_set_that_the_operator_forbids_or_owns(manifest: dict[str, Any]) -> None:
    cluster = manifest["spec"]["rayClusterConfig"]
    assert "headService" not in cluster["headGroupSpec"], "a named head service makes an upgrade hang"
    assert not {"upgradeStrategy", "gcsFaultToleranceOptions", "suspend"} & set(cluster)
    assert not {"serviceUnhealthySecondThreshold", "deploymentUnhealthySecondThreshold"} & set(manifest["spec"]), (
        "ignored by KubeRay for years"
    )
    for pod in pods(manifest):
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            names = {item["name"] for item in container.get("env", [])}
            assert not names & OPERATORS_OWN
            assert not {name for name in names if name.startswith("NVIDIA_")}, "it would give a pod every GPU"


def test_upgrades_follow_the_settings(several: Callable[..., StackSettings], small_stack: Any) -> None:
    small = StackSettings.from_mapping(small_stack())
    for settings, expected in ((several(), "NewCluster"), (small, "None")):
        assert ray_service(settings, plan(settings), "")["spec"]["upgradeStrategy"] == {"type": expected}


def test_the_head_answers_only_where_no_worker_rests(small_stack: Any) -> None:
    for least, expected in ((0, False), (1, True)):
        settings = StackSettings.from_mapping(small_stack(model={"min_replicas": least}))
        spec = ray_service(settings, plan(settings), "")["spec"]
        assert spec["excludeHeadPodFromServeSvc"] is expected, "at zero only the head can hear a request"


def test_only_workers_tolerate_the_taint_of_gpu_nodes(manifest: dict[str, Any], capacity: CapacityPlan) -> None:
    head, *workers = pods(manifest)
    assert "tolerations" not in head
    assert "nodeSelector" not in head
    for pool, pod in zip(capacity.pools, workers, strict=True):
        assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        assert pod["nodeSelector"] == {"eks-gpu-serving/pool": pool.name}


def test_pods_outlive_their_longest_request_and_no_autoscaler_moves_them(
    manifest: dict[str, Any], capacity: CapacityPlan
) -> None:
    cluster = manifest["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] > capacity.timeouts.request_s
        annotations = group["template"]["metadata"]["annotations"]
        assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
        assert annotations["karpenter.sh/do-not-disrupt"] == "true"


def test_only_the_head_may_talk_to_kubernetes(manifest: dict[str, Any]) -> None:
    head, *workers = pods(manifest)
    assert head["serviceAccountName"].endswith("-head")
    assert "automountServiceAccountToken" not in head, "the autoscaler beside it creates pods"
    for pod in workers:
        assert pod["serviceAccountName"].endswith("-worker")
        assert pod["automountServiceAccountToken"] is False


def test_image_and_cluster_name_one_ray_version(manifest: dict[str, Any]) -> None:  # UR-051
    version = manifest["spec"]["rayClusterConfig"]["rayVersion"]
    images = {c["image"] for pod in pods(manifest) for c in [*pod.get("initContainers", []), *pod["containers"]]}
    assert len(images) == 1
    assert version in images.pop().rpartition(":")[2]
