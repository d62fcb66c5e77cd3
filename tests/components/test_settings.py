"""What a stack file may say, and how it is told what it may not."""

import dataclasses
import math
import re

import pytest

from eks_gpu_serving.settings import (
    RAY_VERSION,
    ApplicationSettings,
    ClusterSettings,
    Environment,
    KubeRaySettings,
    NodeGroupSettings,
    RaySettings,
    StackAutoscaling,
    StackModel,
    StackSettings,
)
from ray_model_serving.contract.problems import SettingsError
from ray_model_serving.contract.settings import Limits


def problems_of(mapping: object) -> str:
    with pytest.raises(SettingsError) as caught:
        StackSettings.from_mapping(mapping)
    return str(caught.value)


def test_a_small_stack_is_valid(small_stack) -> None:
    settings = StackSettings.from_mapping(small_stack())
    assert settings.environment is Environment.DEV
    assert settings.service_name == "gpu-serving-dev"


def test_an_unknown_key_is_refused_with_the_nearest_valid_one(small_stack) -> None:
    assert "did you mean 'max_nodes'?" in problems_of(small_stack(pool={"max_node": 3}))
    assert "did you mean 'node_groups'?" in problems_of(small_stack(node_group=[]))


def test_all_problems_come_in_one_error(small_stack) -> None:
    text = problems_of(
        small_stack(
            pool={"instance_type": "m5.large"},
            model={"uri": "https://models/x", "min_replicas": 3, "max_replicas": 2},
            ray={"image": "serving:latest"},
            regoin="eu-west-1",
        )
    )
    expected = ("regoin", "node_groups[0].instance_type", "models[0].uri", "ray.image")
    missing = [path for path in expected if f"- {path}: " not in text]
    assert not missing, f"one run must show everything to mend, {missing} not in {text}"


@pytest.mark.parametrize(
    ("instance_type", "reason"),
    [
        ("m5.large", "not in the table of GPU instance types"),
        ("g6f.large", "no whole GPU"),
        ("g5g.xlarge", "no NVMe instance store"),
        ("g6.xlage", "did you mean 'g6.xlarge'?"),
    ],
)
def test_an_instance_type_that_cannot_serve_is_refused_with_the_reason(small_stack, instance_type, reason) -> None:
    assert reason in problems_of(small_stack(pool={"instance_type": instance_type}))


@pytest.mark.parametrize("uri", ["https://h/x", "gs://b/x", "models/x", "s3://bucket", "s3://B_/x", "s3://b1c/../x"])
def test_a_model_uri_that_is_neither_a_prefix_nor_a_directory_is_refused(small_stack, uri) -> None:
    assert "models[0].uri" in problems_of(small_stack(model={"uri": uri}))


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"max_concurrent_queries": 2}, "limits.max_ongoing_requests"),
        ({"autoscaling": {"target_num_ongoing_requests_per_replica": 20}}, "target_ongoing_requests"),
        ({"autoscaling": {"max_ongoing_requests": 100}}, "one level up"),
        ({"autoscaling": {"target_ongoing_requests": 10}, "limits": {"max_ongoing_requests": 5}}, "must be at most"),
        ({"autoscaling": {"upscaling_factor": 999}}, "start storm"),
        ({"object_store_memory": 1}, "not an actor option"),
        ({"memory": "12Gi"}, "computed"),
    ],
)
def test_serve_options_that_ray_would_ignore_are_refused_with_what_to_write(small_stack, given, advice) -> None:
    # UR-016
    assert advice in problems_of(small_stack(model=given))


@pytest.mark.parametrize(
    "image",
    [
        "registry/serving:1.0.0-ray2.59.0",
        "registry/serving:2.59.0-py311",
        "registry/serving:12.60.0",
        "registry:5000/a",
    ],
)
def test_an_image_with_another_ray_version_is_refused(small_stack, image) -> None:
    # UR-051
    text = problems_of(small_stack(ray={"image": image}))
    assert image in text
    assert "ray.image" in text


def test_the_image_may_carry_a_digest_beside_its_tag(small_stack) -> None:
    image = f"registry:5000/serving:1.0-ray{RAY_VERSION}@sha256:{'0' * 64}"
    assert StackSettings.from_mapping(small_stack(ray={"image": image})).ray.image == image


def test_production_demands_pinned_models_and_no_scale_to_zero(small_stack) -> None:
    text = problems_of(small_stack(environment="prod", model={"min_replicas": 0}))
    assert "models[0].snapshot_id: is required in prod" in text
    assert "models[0].min_replicas: got 0" in text


def test_an_unquoted_kubernetes_version_is_refused_with_how_to_write_it(small_stack) -> None:
    text = problems_of(small_stack(cluster={"kubernetes_version": 1.35}))
    assert re.search(r"kubernetes_version: got 1.35, must be text", text)


def test_an_image_of_your_own_and_a_release_of_eks_exclude_each_other(small_stack) -> None:
    # UR-064
    both = {"ami_id": "ami-0123456789abcdef0", "ami_release_version": "1.35.0-20260520"}
    assert "excludes ami_id" in problems_of(small_stack(pool=both))


@pytest.mark.parametrize("change", [{"name": "a" * 28}, {"pool": {"name": "p" * 31}, "name": "b" * 12}])
def test_names_that_aws_would_refuse_later_are_refused_now(small_stack, change) -> None:
    text = problems_of(small_stack(**change))
    assert "IAM role names made of it have 64" in text


def test_the_longest_name_is_short_enough_for_kuberay(small_stack) -> None:
    settings = StackSettings.from_mapping(small_stack(name="a" * 27))
    assert len(settings.service_name) <= 47, "KubeRay accepts a longer RayService and then never starts it"


def test_an_instance_type_without_a_stock_image_is_refused_with_what_to_give(small_stack) -> None:
    assert "ami_id: is required" in problems_of(small_stack(pool={"instance_type": "g7.2xlarge"}))


def test_two_models_with_one_route_are_refused(small_stack) -> None:
    mapping = small_stack()
    mapping["models"].append({**mapping["models"][0], "name": "other"})
    assert "route '/embed' is used 2 times" in problems_of(mapping)


def test_a_model_on_a_pool_that_does_not_exist_is_refused_with_the_nearest(small_stack) -> None:
    assert "did you mean 'l4'?" in problems_of(small_stack(model={"node_group": "l44"}))


@pytest.mark.parametrize("given", [None, [], "text", 3])
def test_something_that_is_no_mapping_is_refused_in_words(given) -> None:
    assert "- stack settings: got" in problems_of(given)
    assert "must be a mapping" in problems_of(given)


def test_one_run_shows_what_spans_several_keys_beside_everything_else(small_stack) -> None:
    mapping = small_stack(
        environment="prod",
        regoin="x",
        pool={"max_nodes": 1, "min_nodes": 3, "nmae": "x"},
        model={"min_replicas": 0, "num_gpus": 1.5, "weights_gib": "big", "node_group": "l5"},
        ray={"namespace": "ops", "image": "serving:latest"},
        kuberay={"namespace": "ops", "verison": "1"},
        tags={"aws:x": "y"},
    )
    mapping["models"].append({**mapping["models"][0], "uri": 3})
    paths = {line.split(": ")[0].removeprefix("  - ") for line in problems_of(mapping).splitlines()[1:]}
    assert paths == {
        "regoin",
        "node_groups[0].nmae",
        "node_groups[0].min_nodes",
        "models",
        *(f"models[{n}].{key}" for n in (0, 1) for key in ("weights_gib", "num_gpus", "min_replicas", "node_group")),
        "models[0].snapshot_id",
        "models[1].uri",
        "ray.image",
        "kuberay.verison",
        "kuberay.namespace",
        "tags.aws:x",
    }


OF_NEW = {
    "kubernetes_version": "1.35",
    "vpc_id": "vpc-0123456789abcdef0",
    "endpoint_public_access": True,
    "public_access_cidrs": ["192.0.2.0/24"],
    "system_instance_type": "m7i.xlarge",
    "system_nodes": 2,
}


@pytest.mark.parametrize("key", OF_NEW)
def test_what_describes_a_new_cluster_is_refused_beside_an_existing_one(small_stack, key) -> None:
    text = problems_of(small_stack(cluster={"existing_name": "shared", key: OF_NEW[key]}))
    assert f"cluster.{key}: describes a new cluster, 'shared' exists: leave it out" in text


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 10**400], ids=range(4))
def test_a_number_that_is_none_is_refused_wherever_it_stands(small_stack, number) -> None:
    found = [
        ("node_groups[0].max_nodes", small_stack(pool={"max_nodes": number})),
        ("node_groups[0].cache_budget_gib", small_stack(pool={"cache_budget_gib": number})),
        ("node_groups[0].pod_memory_gib", small_stack(pool={"pod_memory_gib": number})),
        ("models[0].weights_gib", small_stack(model={"weights_gib": number})),
        ("models[0].host_peak_gib", small_stack(model={"host_peak_gib": number})),
        ("models[0].limits.batch_wait_s", small_stack(model={"limits": {"batch_wait_s": number}})),
        ("models[0].autoscaling.load_time_s", small_stack(model={"autoscaling": {"load_time_s": number}})),
        ("models[0].resident_gib", small_stack(model={"resident_gib": number})),
        ("serving.rate_cap_mib_per_s", small_stack(serving={"rate_cap_mib_per_s": number})),
        ("ray.head_memory_gib", small_stack(ray={"head_memory_gib": number})),
        ("cluster.system_nodes", small_stack(cluster={"system_nodes": number})),
    ]
    for path, mapping in found:
        assert f"- {path}: got " in problems_of(mapping)


def test_every_number_of_a_stack_file_is_bounded_on_both_sides() -> None:
    parts = (StackSettings, ClusterSettings, NodeGroupSettings, StackModel, RaySettings, KubeRaySettings)
    for part in (*parts, ApplicationSettings, StackAutoscaling, Limits):
        for field in dataclasses.fields(part):
            if field.type in (int, float, int | None, float | None):
                rule = field.metadata["rule"]
                assert rule.maximum is not None, f"{part.__name__}.{field.name}"
                assert rule.minimum is not None or rule.above is not None, f"{part.__name__}.{field.name}"


@pytest.mark.parametrize("namespace", ["default", "kube-system", "kube-public", "kube-mine", "nvidia-device-plugin"])
def test_a_namespace_that_is_not_the_stacks_own_is_refused(small_stack, namespace) -> None:
    assert "ray.namespace: got" in problems_of(small_stack(ray={"namespace": namespace}))
    assert "kuberay.namespace: got" in problems_of(small_stack(kuberay={"namespace": namespace}))


def test_operator_and_application_have_a_namespace_each(small_stack) -> None:
    assert "as ray.namespace, each makes its own" in problems_of(small_stack(ray={"namespace": "kuberay-system"}))


def test_a_pool_called_cluster_lifts_no_limit(small_stack) -> None:
    text = problems_of(small_stack(name="a" * 28, pool={"name": "cluster"}))
    assert "at most 39" in text, "the cluster's own limit is the stricter one"
