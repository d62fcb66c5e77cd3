"""Field reports about memory: what a pod may use, and what Ray may hand out of it."""

import re
from typing import Any

import pytest
import yaml

from eks_gpu_serving.planning.capacity import CapacityPlan
from eks_gpu_serving.planning.plan import plan
from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.memory import RAY_KILL_THRESHOLD, SHM_SURPLUS_BYTES, SYSTEM_FIXED_BYTES
from ray_model_serving.contract.problems import SettingsError

GPU = "nvidia.com/gpu"


def groups(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Head and worker groups alike: both have rayStartParams and a template."""
    cluster = manifest["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def containers(group: dict[str, Any]) -> list[dict[str, Any]]:
    pod = group["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


def deployments(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return yaml.safe_load(manifest["spec"]["serveConfigV2"])["applications"][0]["deployments"]


def test_no_replica_can_land_beside_the_serve_controller(manifest: dict[str, Any]) -> None:  # UR-001
    head = manifest["spec"]["rayClusterConfig"]["headGroupSpec"]["rayStartParams"]
    assert head["num-cpus"] == "0", "a text: the operator passes rayStartParams on as flags"
    assert head["num-gpus"] == "0"
    assert head["memory"] == "0"
    for deployment in deployments(manifest):
        options = deployment["ray_actor_options"]
        assert options["num_cpus"] > 0, "an actor without CPUs would fit on the head"
        assert options["memory"] > 0


def test_replicas_object_store_and_overhead_fit_into_the_limit_of_their_pod(  # UR-001, UR-005
    manifest: dict[str, Any], capacity: CapacityPlan
) -> None:
    reserved = {item["name"]: item["ray_actor_options"]["memory"] for item in deployments(manifest)}
    for pool, group in zip(capacity.pools, groups(manifest)[1:], strict=True):
        params = group["rayStartParams"]
        limit = int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"])
        handed_out, object_store = int(params["memory"]), int(params["object-store-memory"])
        overhead = SYSTEM_FIXED_BYTES + SHM_SURPLUS_BYTES
        assert handed_out + object_store + overhead <= limit * RAY_KILL_THRESHOLD
        for model in (model for model in capacity.models if model.pool == pool.name):
            assert model.replicas_per_pod * reserved[model.settings.name] <= handed_out


def test_replicas_that_do_not_fit_are_refused_with_both_numbers(small_stack: Any) -> None:  # UR-001
    mapping = small_stack(model={"num_gpus": 0.2, "num_cpus": 0.5, "host_peak_gib": 4, "max_replicas": 5})
    with pytest.raises(SettingsError) as refused:
        plan(StackSettings.from_mapping(mapping))
    assert re.search(r"a worker pod needs [\d.]+ GiB .* leave [\d.]+ GiB each", str(refused.value))


def test_every_deployment_reserves_whole_bytes_of_at_least_its_peak(  # UR-002
    manifest: dict[str, Any], capacity: CapacityPlan
) -> None:
    found = {item["name"]: item["ray_actor_options"] for item in deployments(manifest)}
    for model in capacity.models:
        memory = found[model.settings.name]["memory"]
        assert type(memory) is int, "Ray takes neither text nor fractions of a byte"
        assert memory >= model.settings.host_peak_bytes
    assert all("object_store_memory" not in options for options in found.values()), "Ray raises ValueError for it"


@pytest.mark.parametrize("key", ["memory", "object_store_memory"])
def test_memory_written_by_hand_is_refused_with_what_to_do(key: str, small_stack: Any) -> None:  # UR-002
    with pytest.raises(SettingsError, match=rf"models\[0\]\.{key}: unknown key; "):
        StackSettings.from_mapping(small_stack(model={key: "12Gi"}))


def test_every_container_has_limits_equal_to_its_requests(manifest: dict[str, Any]) -> None:  # UR-004
    for group in groups(manifest):
        for container in containers(group):
            resources = container["resources"]
            assert resources["limits"] == resources["requests"], container["name"]
            assert int(resources["limits"]["memory"]) > 0, "without a limit Ray takes the node's memory as its own"
            assert "cpu" in resources["limits"]
    autoscaler = manifest["spec"]["rayClusterConfig"]["autoscalerOptions"]["resources"]
    assert autoscaler["limits"] == autoscaler["requests"]


def test_workers_ask_for_gpus_by_limit_and_the_head_for_none(  # UR-004
    manifest: dict[str, Any], capacity: CapacityPlan
) -> None:
    head, *workers = groups(manifest)
    assert GPU not in head["template"]["spec"]["containers"][0]["resources"]["limits"]
    for pool, group in zip(capacity.pools, workers, strict=True):
        asked = group["template"]["spec"]["containers"][0]["resources"]["limits"][GPU]
        assert asked == str(pool.gpus_per_pod) == group["rayStartParams"]["num-gpus"]


def test_shared_memory_is_bounded_and_holds_the_object_store(manifest: dict[str, Any]) -> None:  # UR-005
    for group in groups(manifest):
        pod = group["template"]["spec"]
        store = group["rayStartParams"]["object-store-memory"]
        assert re.fullmatch(r"\d+", store), "the operator passes it on as a flag, in bytes"
        mount = next(m for m in pod["containers"][0]["volumeMounts"] if m["mountPath"] == "/dev/shm")
        volume = next(v for v in pod["volumes"] if v["name"] == mount["name"])
        assert volume["emptyDir"]["medium"] == "Memory"
        limit = int(pod["containers"][0]["resources"]["limits"]["memory"])
        assert int(store) < int(volume["emptyDir"]["sizeLimit"]) < limit


def test_ray_starts_to_kill_where_the_plan_says(manifest: dict[str, Any]) -> None:
    for group in groups(manifest):
        env = {item["name"]: item["value"] for item in group["template"]["spec"]["containers"][0]["env"]}
        assert float(env["RAY_memory_usage_threshold"]) == RAY_KILL_THRESHOLD
