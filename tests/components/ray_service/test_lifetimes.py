"""Field reports about starts, probes, time-outs and ends: who waits for whom, and for how long."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from eks_gpu_serving.planning.capacity import CapacityPlan
from eks_gpu_serving.planning.plan import plan
from eks_gpu_serving.ray_service.manifest import ray_service
from eks_gpu_serving.ray_service.serve_config import serve_config
from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.problems import SettingsError

# Ray Serve 2.60, RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S.
PROXY_DRAIN_S = 30


def groups(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = manifest["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def probe_faults(pod: dict[str, Any], load_s: float) -> Iterator[str]:
    """What of a pod's own probes could end it while a model loads. The operator's ask Ray, never the application."""
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        startup = container.get("startupProbe")
        if startup and startup.get("periodSeconds", 10) * startup.get("failureThreshold", 3) < 1.5 * load_s:
            yield f"{container['name']}: the startup budget is below 1.5 x {load_s:g} s"
        if "8000" in str(container.get("livenessProbe", {})) or "serve" in str(container.get("livenessProbe", {})):
            yield f"{container['name']}: liveness asks the application, which may be loading"
        if "readinessProbe" in container and "/-/healthz" not in str(container["readinessProbe"]):
            yield f"{container['name']}: readiness does not ask Serve's proxy"


def test_no_probe_ends_a_replica_that_loads(  # UR-092, UR-094
    manifest: dict[str, Any], capacity: CapacityPlan
) -> None:
    for group in groups(manifest):
        assert list(probe_faults(group["template"]["spec"], capacity.timeouts.load_deadline_s)) == []


@pytest.mark.parametrize(
    "probe",
    [
        {"startupProbe": {"periodSeconds": 10, "failureThreshold": 134, "exec": {"command": ["true"]}}},
        {"livenessProbe": {"httpGet": {"path": "/embed/status", "port": 8000}}},
        {"livenessProbe": {"httpGet": {"path": "/embed/status", "port": "serve"}}},
        {"readinessProbe": {"httpGet": {"path": "/embed", "port": "serve"}}},
    ],
)
def test_a_probe_that_would_is_found(probe: dict[str, Any], manifest: dict[str, Any]) -> None:  # UR-094
    pod = groups(manifest)[1]["template"]["spec"]
    pod["containers"][0].update(probe)
    assert len(list(probe_faults(pod, load_s=900))) == 1


def test_every_worker_with_a_replica_has_a_proxy_and_the_operators_probe(manifest: dict[str, Any]) -> None:  # UR-036
    assert yaml.safe_load(manifest["spec"]["serveConfigV2"])["proxy_location"] == "EveryNode"
    for group in groups(manifest):
        for container in group["template"]["spec"]["containers"]:
            assert "readinessProbe" not in container, "the operator's asks /-/healthz of the pod's own proxy"


def test_an_update_waits_longer_than_a_load_may_take(manifest: dict[str, Any], capacity: CapacityPlan) -> None:
    waits_s = int(manifest["metadata"]["annotations"]["pulumi.com/timeoutSeconds"])
    assert waits_s >= capacity.timeouts.cold_ready_s + capacity.timeouts.load_deadline_s


def test_nothing_is_installed_when_a_replica_starts(manifest: dict[str, Any]) -> None:  # UR-023
    text = str(manifest)
    for word in ("runtime_env", "'pip'", "'conda'", "'uv'", "working_dir"):
        assert word not in text, f"{word}: dependencies are in the image, whose tag is fixed"
    images = {c["image"] for g in groups(manifest) for c in g["template"]["spec"]["containers"]}
    assert all(":" in image and not image.endswith(":latest") for image in images)


@pytest.mark.parametrize("image", ["r/serving:latest", "r/serving", "registry:5000/serving"])
def test_an_image_without_a_fixed_tag_is_refused(image: str, small_stack: Any) -> None:  # UR-023
    with pytest.raises(SettingsError, match=r"ray\.image: got .* needs a fixed tag"):
        StackSettings.from_mapping(small_stack(ray={"image": image}))


def test_the_share_of_a_gpu_reaches_the_application_that_keeps_to_it(  # UR-010
    manifest: dict[str, Any],
) -> None:
    (application,) = yaml.safe_load(manifest["spec"]["serveConfigV2"])["applications"]
    reserved = {item["name"]: item["ray_actor_options"].get("num_gpus", 0) for item in application["deployments"]}
    for model in application["args"]["models"]:
        assert model["num_gpus"] == reserved[model["name"]] > 0, "the loader caps torch at what Ray only books"


def test_a_surge_without_spare_gpus_is_refused_and_the_other_mode_says_what_it_costs(
    small_stack: Any,
) -> None:  # UR-025
    pool, model = {"max_nodes": 2}, {"min_replicas": 2, "max_replicas": 2}
    with pytest.raises(SettingsError) as refused:
        plan(StackSettings.from_mapping(small_stack(pool=pool, model=model, ray={"upgrade": "new_cluster"})))
    assert "an upgrade runs two clusters and needs 4; 2 x g6.xlarge hold 2; write max_nodes 4" in str(refused.value)
    in_place = plan(StackSettings.from_mapping(small_stack(pool=pool, model=model, ray={"upgrade": "none"})))
    assert any("With ray.upgrade none" in note and "an outage of about 282 s" in note for note in in_place.notes)
    surge = small_stack(pool={"max_nodes": 4}, model=model, ray={"upgrade": "new_cluster"})
    assert not any("With ray.upgrade none" in note for note in plan(StackSettings.from_mapping(surge)).notes)


def test_a_roll_out_that_starts_a_replica_first_needs_room_for_it(small_stack: Any) -> None:  # UR-025
    model = {"min_replicas": 2, "max_replicas": 2, "surge": True}
    with pytest.raises(SettingsError) as refused:
        plan(StackSettings.from_mapping(small_stack(pool={"max_nodes": 2}, model=model, ray={"upgrade": "none"})))
    assert "2 and 1 of its surge x 1 GPU" in str(refused.value), (
        "it would wait for ever for the GPU that an old one has"
    )
    assert "write max_nodes 3" in str(refused.value)
    fits = plan(StackSettings.from_mapping(small_stack(pool={"max_nodes": 3}, model=model, ray={"upgrade": "none"})))
    assert (fits.pools[0].min_pods, fits.pools[0].max_pods) == (2, 3)


def test_the_head_is_large_by_default_and_a_smaller_one_is_written_and_warned_of(small_stack: Any) -> None:  # UR-006
    default = plan(StackSettings.from_mapping(small_stack()))
    assert default.head.memory_bytes >= 8 * 1024**3
    assert not any("head_memory_gib" in note for note in default.notes)
    small = plan(StackSettings.from_mapping(small_stack(ray={"head_memory_gib": 4})))
    assert any("ray.head_memory_gib is 4, below the default of 8" in note for note in small.notes)
    with pytest.raises(SettingsError, match=r"ray\.head_memory_gib: got 2"):
        StackSettings.from_mapping(small_stack(ray={"head_memory_gib": 2}))


def test_no_autoscaler_of_nodes_moves_a_head_or_a_loading_worker(manifest: dict[str, Any]) -> None:  # UR-008
    for group in groups(manifest):
        annotations = group["template"]["metadata"]["annotations"]
        assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
        assert annotations["karpenter.sh/do-not-disrupt"] == "true"


@given(
    deadlines=st.lists(st.floats(0.001, 3600), min_size=1, max_size=3),
    ongoing=st.integers(1, 8),
    cap=st.none() | st.floats(1, 1000),
)
def test_each_end_waits_for_the_one_before(deadlines: list[float], ongoing: int, cap: float | None) -> None:
    """Request, answer through the proxy, drain of the replica, of the ingress, of the proxy, end of the pod."""
    models = [
        {
            "name": f"m{index}",
            "route": f"/m{index}",
            "model_class": "a:B",
            "uri": "s3://models/m/",
            "weights_gib": 0.1,
            "num_gpus": 0.25,
            "num_cpus": 0.5,
            "limits": {"request_deadline_s": deadline, "max_ongoing_requests": ongoing, "max_body_bytes": 1024},
        }
        for index, deadline in enumerate(deadlines)
    ]
    if ongoing < 2:
        models = [{**model, "autoscaling": {"target_ongoing_requests": 1}} for model in models]
    settings = StackSettings.from_mapping(
        {
            "environment": "dev",
            "region": "us-east-1",
            "node_groups": [{"name": "l4", "instance_type": "g6.4xlarge", "max_nodes": 1}],
            "models": models,
            "serving": {} if cap is None else {"rate_cap_mib_per_s": cap},
            "ray": {"image": "r/serving:1-ray2.60.0", "upgrade": "none"},
        }
    )
    capacity = plan(settings)
    document = yaml.safe_load(serve_config(settings, capacity, model_role_arn=None))
    manifest = ray_service(settings, capacity, "")
    proxy_s = document["http_options"]["request_timeout_s"]
    drains = {item["name"]: item["graceful_shutdown_timeout_s"] for item in document["applications"][0]["deployments"]}
    assert proxy_s > max(deadlines), "the replica's own answer comes first"
    for index, deadline in enumerate(deadlines):
        assert drains[f"m{index}"] > deadline, "a request in its time is not cut off"
    assert max(drains.values()) > proxy_s, "who is answered at the last moment is still connected"
    assert drains.get("Ingress", max(drains.values())) >= max(drains.values())
    for group in groups(manifest):
        grace_s = group["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace_s > max(*drains.values(), PROXY_DRAIN_S)
    assert capacity.timeouts.load_deadline_s >= capacity.timeouts.prefetch_deadline_s > 0
