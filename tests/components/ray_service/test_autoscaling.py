"""Field reports about scaling: what Serve and Ray's autoscaler are told, and what they are never told."""

import re
from typing import Any

import pytest
import yaml

from eks_gpu_serving.planning.capacity import CapacityPlan
from eks_gpu_serving.planning.plan import plan
from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.problems import SettingsError


def refusal(mapping: dict[str, Any]) -> str:
    with pytest.raises(SettingsError) as caught:
        plan(StackSettings.from_mapping(mapping))
    return str(caught.value)


def scaling(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    (application,) = yaml.safe_load(manifest["spec"]["serveConfigV2"])["applications"]
    return [item["autoscaling_config"] for item in application["deployments"] if "autoscaling_config" in item]


def test_a_bound_that_the_autoscaler_does_not_see_is_refused_with_what_to_do(small_stack: Any) -> None:  # UR-012
    text = refusal(small_stack(model={"max_replicas_per_node": 1, "max_replicas": 2}))
    assert "models[0].max_replicas_per_node: unknown key; not offered: Ray's autoscaler does not see that bound" in text


def test_the_most_replicas_are_finite_and_have_a_place(  # UR-020
    manifest: dict[str, Any], capacity: CapacityPlan
) -> None:
    assert len(scaling(manifest)) == len(capacity.models)
    for model, given in zip(capacity.models, scaling(manifest), strict=True):
        (pool,) = (pool for pool in capacity.pools if pool.name == model.pool)
        assert 1 <= given["max_replicas"] <= pool.max_pods * model.replicas_per_pod
        assert given.get("upscaling_factor") is None or given["upscaling_factor"] <= 1, "Serve's own default is 1"


@pytest.mark.parametrize("key", ["upscaling_factor", "smoothing_factor", "upscale_smoothing_factor"])
def test_a_factor_that_multiplies_a_burst_is_refused(key: str, small_stack: Any) -> None:  # UR-020, UR-021
    assert f"models[0].autoscaling.{key}: unknown key; " in refusal(small_stack(model={"autoscaling": {key: 999}}))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"load_time_s": 240, "downscale_delay_s": 60},
            "downscale_delay_s: got 60, must be at least 2 x load_time_s 240",
        ),
        ({"downscale_delay_s": 300}, "downscale_delay_s: got 300, must be at least 2 x 283 s, which the plan expects"),
        ({"upscale_delay_s": 0}, "upscale_delay_s: got 0"),
        ({"look_back_period_s": 10}, "look_back_period_s: got 10"),
        ({"look_back_period_s": 60}, "look_back_period_s 60 <= upscale_delay_s 30"),
        ({"upscale_delay_s": 900}, "upscale_delay_s 900 < downscale_delay_s 600 does not hold"),
        ({"target_ongoing_requests": 0.1}, "target_ongoing_requests: got 0.1"),
        ({"metrics_interval_s": 5}, "metrics_interval_s: unknown key; deprecated"),
        ({"load_time_s": 50_000}, "downscale_delay_s: got 86400, must be at least 2 x load_time_s 50000"),
    ],
)
def test_delays_that_make_replicas_come_and_go_are_refused(  # UR-021
    given: dict[str, Any], words: str, small_stack: Any
) -> None:
    assert words in refusal(small_stack(model={"autoscaling": given}))


@pytest.mark.parametrize(
    ("given", "load_time_s", "downscale_delay_s"),
    [
        ({}, 283, 600),
        ({"load_time_s": 20}, 20, 600),
        ({"load_time_s": 20, "downscale_delay_s": 60}, 20, 60),
        ({"load_time_s": 400}, 400, 800),
        ({"downscale_delay_s": 566}, 283, 566),
    ],
)
def test_what_is_left_out_follows_from_how_long_a_load_takes(  # UR-021
    given: dict[str, Any], load_time_s: float, downscale_delay_s: float, small_stack: Any
) -> None:
    capacity = plan(StackSettings.from_mapping(small_stack(model={"autoscaling": given})))
    scaling = capacity.serving.models[0].autoscaling
    assert (scaling.load_time_s, scaling.downscale_delay_s) == (load_time_s, downscale_delay_s)
    assert capacity.models[0].settings.autoscaling == scaling


def test_a_slow_fetch_keeps_a_surplus_longer(small_stack: Any) -> None:  # UR-021
    mapping = small_stack(serving={"rate_cap_mib_per_s": 4})
    (model,) = plan(StackSettings.from_mapping(mapping)).serving.models
    assert model.autoscaling.load_time_s == 279 + 256, "1 GiB at 4 MiB/s, beside node, image and start"
    assert model.autoscaling.downscale_delay_s == 2 * (279 + 256)


def test_production_rests_at_one_replica_at_least(small_stack: Any) -> None:  # UR-022
    assert "models[0].min_replicas: got 0, prod does not scale to zero" in refusal(
        small_stack(environment="prod", model={"min_replicas": 0})
    )


def test_who_scales_to_zero_is_told_both_times(small_stack: Any) -> None:  # UR-022
    notes = plan(StackSettings.from_mapping(small_stack(model={"min_replicas": 0}))).notes
    (note,) = (note for note in notes if "rests at 0 replicas" in note)
    assert "given up after 30 s, a replica is ready after about 283 s" in note
    kept = plan(StackSettings.from_mapping(small_stack())).notes
    assert not [note for note in kept if "rests at 0 replicas" in note]


def test_no_update_resets_what_the_autoscaler_decided(manifest: dict[str, Any]) -> None:  # UR-042
    cluster = manifest["spec"]["rayClusterConfig"]
    assert cluster["enableInTreeAutoscaling"] is True
    for group in cluster["workerGroupSpecs"]:
        assert "replicas" not in group, "an update would put our number back and end workers with loaded models"
        assert group["minReplicas"] <= group["maxReplicas"]


def test_the_autoscaler_is_of_one_known_kind(manifest: dict[str, Any]) -> None:  # UR-043
    cluster = manifest["spec"]["rayClusterConfig"]
    assert cluster["autoscalerOptions"]["version"] == "v2"
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert group["template"]["spec"]["restartPolicy"] == "Never", "Always would bring back a pod that is to go"
    slowest_s = max(given["downscale_delay_s"] for given in scaling(manifest))
    # Left out: in the cluster's part a number that follows from load times would make a new model a second cluster.
    assert cluster["autoscalerOptions"].get("idleTimeoutSeconds", slowest_s) >= slowest_s


@pytest.mark.parametrize(
    "change", [{"ray": {"version": "2.59.0"}}, {"kuberay": {"chart_version": "1.5.1"}}], ids=["Ray", "KubeRay"]
)
def test_versions_that_were_never_run_together_are_refused(change: dict[str, Any], small_stack: Any) -> None:  # UR-043
    (part,) = change
    (key,) = change[part]
    assert re.search(rf"{part}\.{key}: got '{change[part][key]}'", refusal(small_stack(**change)))
