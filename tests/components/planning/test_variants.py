"""Variants and converted copies: what they take on the device, in the cache, of the network and of IAM."""

import re
from typing import Any

import pytest

from eks_gpu_serving.planning.capacity import CapacityPlan
from eks_gpu_serving.planning.plan import RefusedError, plan
from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.memory import GIB, actor_memory_bytes
from ray_model_serving.contract.problems import SettingsError
from ray_model_serving.contract.settings import ServingSettings

PIN = "0123456789abcdef0123456789abcdef"


def variants(count: int) -> list[dict[str, Any]]:
    return [{"name": f"v{n}", "uri": f"s3://models/v{n}/"} for n in range(count)]


def planned(mapping: dict[str, Any]) -> CapacityPlan:
    return plan(StackSettings.from_mapping(mapping))


def refusal(mapping: dict[str, Any]) -> str:
    with pytest.raises(RefusedError) as caught:
        planned(mapping)
    return str(caught.value)


def problems(mapping: dict[str, Any]) -> str:
    with pytest.raises(SettingsError) as caught:
        StackSettings.from_mapping(mapping)
    return str(caught.value)


@pytest.mark.parametrize(("given", "loaded_gib"), [({}, 1), ({"resident_gib": 3}, 3)])
def test_loaded_variants_take_device_memory_beside_the_model(small_stack: Any, given: Any, loaded_gib: int) -> None:
    alone = planned(small_stack()).models[0]
    model = planned(small_stack(model={"variants": variants(5), **given})).models[0]
    assert model.resident_variant_bytes == loaded_gib * GIB
    assert model.device_bytes == alone.device_bytes + loaded_gib * GIB, "one replica holds so much, not all five"


def test_variants_that_do_not_fit_the_gpu_are_refused_with_every_part(small_stack: Any) -> None:
    fits = {"weights_gib": 10, "gpu_gib": 12, "host_peak_gib": 1}
    assert planned(small_stack(model=fits)).models[0].device_bytes == 12 * GIB
    text = refusal(small_stack(model={**fits, "variants": variants(1)}))
    assert "needs 22.50 GiB on a GPU (12.00, 10.00 for loaded variants and 0.50 for its CUDA context)" in text
    assert "is 20.56 GiB; raise num_gpus or choose" in text
    assert "raise num_gpus, lower resident_gib or" in refusal(
        small_stack(model={**fits, "variants": variants(1), "resident_gib": 20})
    )


def test_variants_on_the_cpu_are_memory_of_the_replica(small_stack: Any) -> None:
    cpu = {"device": "cpu", "num_gpus": 0}
    alone = planned(small_stack(model=cpu)).models[0]
    model = planned(small_stack(model={**cpu, "variants": variants(3), "resident_gib": 2})).models[0]
    assert model.actor_memory_bytes == alone.actor_memory_bytes + 2 * GIB == actor_memory_bytes(model.settings)
    assert model.device_bytes == 0


@pytest.mark.parametrize(
    ("model", "needed", "words"),
    [
        ({"variants": variants(2)}, 7, "2 snapshots of each and of its variants and one being fetched"),
        ({"dtype": "float16"}, 5, "2 snapshots of each, a copy in another dtype beside each and one"),
        ({"dtype": "float32"}, 8, "a copy in another dtype beside each"),
        ({"dtype": "float16", "keep_converted": False}, 3, "2 snapshots of each and one"),
        ({"dtype": "float16", "variants": variants(1)}, 9, "of each and of its variants, a copy in another dtype"),
    ],
)
def test_the_cache_holds_two_versions_of_everything_and_what_is_being_made(
    small_stack: Any, model: dict[str, Any], needed: int, words: str
) -> None:
    exact, short = ({"cache_budget_gib": gib} for gib in (needed, needed - 0.01))
    sized = {"host_peak_gib": 2, **model}
    assert planned(small_stack(pool=exact, model=sized)).serving.cache_budget_bytes == needed * GIB
    text = refusal(small_stack(pool=short, model=sized))
    assert f"the models need {needed}.00 GiB (" in text
    assert words in text


def test_variants_on_disk_take_no_room_in_the_cache(small_stack: Any) -> None:
    on_disk = [{"name": "a", "uri": "file:///opt/a/"}]
    assert planned(small_stack(pool={"cache_budget_gib": 3}, model={"variants": on_disk})).models[0].fetch_s > 0


def test_a_node_fetches_ahead_what_a_replica_can_hold(small_stack: Any) -> None:
    alone = planned(small_stack())
    several = planned(small_stack(model={"variants": variants(5), "resident_gib": 3.5}))
    assert several.models[0].prefetched_variants == ("v0", "v1", "v2"), "a longer list would delay every start"
    assert several.models[0].fetch_s == pytest.approx(4 * alone.models[0].fetch_s)
    assert several.timeouts.cold_ready_s == pytest.approx(alone.timeouts.cold_ready_s + 3 * alone.models[0].fetch_s)


def test_a_rate_cap_makes_fetches_longer_and_never_faster(small_stack: Any) -> None:
    free, capped, loose = (
        planned(small_stack(serving=serving)).models[0].fetch_s
        for serving in ({}, {"rate_cap_mib_per_s": 16}, {"rate_cap_mib_per_s": 60_000})
    )
    assert capped == pytest.approx(1024 / 16)
    assert free == loose


def test_production_pins_variants_as_it_pins_models(small_stack: Any) -> None:
    given = [{"name": "a", "uri": "s3://models/a/"}, {"name": "b", "uri": "file:///opt/b/"}]
    text = problems(small_stack(environment="prod", model={"snapshot_id": PIN, "variants": given}))
    assert "models[0].variants[0].snapshot_id: is required in prod" in text
    assert "variants[1]" not in text, "what is in the image is pinned with it"
    given[0]["snapshot_id"] = PIN
    StackSettings.from_mapping(small_stack(environment="prod", model={"snapshot_id": PIN, "variants": given}))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"resident_gib": 2}, "resident_gib: got 2, the model has no variants"),
        ({"resident_gib": 0.5, "variants": variants(1)}, "resident_gib: got 0.5, must be at least weights_gib 1"),
        (
            {"variants": [{"name": "status", "uri": "s3://models/legal/"}]},
            "variants[0].name: got 'status', the route that",
        ),
        ({"variants": variants(1) * 2}, "variants: name 'v0' is used 2 times"),
        ({"variants": [{"name": "a", "uri": "s3://m/a/", "snapshot": PIN}]}, "did you mean 'snapshot_id'?"),
    ],
)
def test_variants_that_make_no_sense_are_refused(small_stack: Any, model: dict[str, Any], words: str) -> None:
    assert words in problems(small_stack(model=model))


@pytest.mark.parametrize("name", ["legal", "status", "ready"])
def test_a_route_that_is_another_models_is_refused_by_the_stack_and_by_the_application(
    small_stack: Any, name: str
) -> None:
    mapping = small_stack(
        model={"num_gpus": 0.5, "num_cpus": 0.5, "variants": [{"name": "legal", "uri": "s3://models/legal/"}]}
    )
    mapping["models"].append({**mapping["models"][0], "name": "other", "route": "/other"})
    args = planned(mapping).serving.to_mapping()
    assert ServingSettings.from_mapping(args).models[1].route == "/other"
    expected = f"models[1].route: got '/embed/{name}', which is a route of model 'embedding'"
    mapping["models"][1]["route"] = f"/embed/{name}"
    assert expected in problems(mapping)
    args["models"][1]["route"] = f"/embed/{name}"  # type: ignore[index]
    with pytest.raises(SettingsError, match=re.escape(expected)):
        ServingSettings.from_mapping(args)


def test_a_fetch_that_takes_half_a_day_is_refused(small_stack: Any) -> None:
    pool = {"instance_type": "g6.48xlarge"}
    model = {"weights_gib": 40, "gpu_gib": 20, "host_peak_gib": 1, "num_gpus": 8}
    for given in ({}, {"autoscaling": {"load_time_s": 60}}):
        mapping = small_stack(pool=pool, model={**model, **given}, serving={"rate_cap_mib_per_s": 1})
        capacity = planned(mapping)
        assert capacity.timeouts.cold_ready_s == 279 + 40 * 1024
        assert capacity.serving.load_deadline_s == 86_400, "five times as long is more than the application takes"
        mapping["models"][0]["weights_gib"] = 60
        assert "node_groups[0] (l4): a replica on a new node is ready after 61719 s, nearly all" in refusal(mapping)


def test_the_policy_of_the_role_counts_variants(small_stack: Any) -> None:
    many = [{"name": f"v{n}", "uri": f"s3://models/{'x' * 60}-{n}/"} for n in range(80)]
    model = {"weights_gib": 0.01, "variants": many}
    assert "models: 81 URIs make a policy of" in refusal(small_stack(model=model))
