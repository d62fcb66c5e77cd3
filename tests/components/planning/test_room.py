"""Pods against nodes: whatever is planned can be placed, whatever can not is refused with both numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eks_gpu_serving.planning.instances import instance_problem, instance_types
from eks_gpu_serving.planning.plan import RefusedError, plan
from eks_gpu_serving.planning.refusals import CACHE_DISK_FRACTION
from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.memory import (
    CUDA_CONTEXT_BYTES,
    MIB,
    SYSTEM_FIXED_BYTES,
    actor_memory_bytes,
    needed_pod_bytes,
    usable_device_bytes,
)
from ray_model_serving.contract.problems import SettingsError
from ray_model_serving.contract.settings import Device, ServingSettings

TWELVE = {"instance_type": "g6.12xlarge"}
CPU = {"device": "cpu", "num_gpus": 0}


def planned(mapping):
    return plan(StackSettings.from_mapping(mapping))


def refusal(mapping) -> str:
    with pytest.raises(RefusedError) as caught:
        planned(mapping)
    return str(caught.value)


def test_gpus_that_no_pod_can_use_do_not_count(small_stack) -> None:
    # 4 x 3 GPUs are as many as 3 nodes of 4 have, and no node holds two pods of 3.
    text = refusal(small_stack(pool={**TWELVE, "max_nodes": 3}, model={"num_gpus": 3, "max_replicas": 4}))
    assert "max_replicas asks for 4 worker pods of 3 GPU" in text
    assert "3 x g6.12xlarge hold 3; write max_nodes 4" in text


def test_replicas_on_the_cpu_need_pods_too(small_stack) -> None:
    text = refusal(small_stack(model={**CPU, "max_replicas": 100}))
    assert "asks for 100 worker pods" in text
    assert "1 x g6.xlarge hold 1" in text


@pytest.mark.parametrize(("max_nodes", "fits"), [(3, False), (5, False), (6, True)])
def test_an_upgrade_needs_room_for_the_pods_of_two_clusters(small_stack, max_nodes, fits) -> None:
    mapping = small_stack(pool={"max_nodes": max_nodes}, model={"max_replicas": 3}, ray={"upgrade": "new_cluster"})
    if fits:
        assert planned(mapping).pools[0].nodes_at_peak == 6
    else:
        assert f"needs 6; {max_nodes} x g6.xlarge hold {max_nodes}; write max_nodes 6" in refusal(mapping)


@pytest.mark.parametrize(
    ("first", "second", "fits"), [(0.5, 0.25, False), (1, 2, False), (0.5, 1, False), (2, 2, True)]
)
def test_replicas_of_different_sizes_are_not_put_on_one_pool(small_stack, first, second, fits) -> None:
    mapping = small_stack(pool={**TWELVE, "max_nodes": 2}, model={"num_gpus": first})
    mapping["models"].append({**mapping["models"][0], "name": "other", "route": "/other", "num_gpus": second})
    if fits:
        assert planned(mapping).pools[0].max_pods == 2
    else:
        assert f"different num_gpus (embedding {first:g}, other {second:g})" in refusal(mapping)


@pytest.mark.parametrize(
    ("num_gpus", "replicas", "pods"), [(0.1, 10, 1), (0.3, 4, 2), (0.35, 3, 2), (0.3333, 3, 1), (0.7, 2, 2), (1, 3, 3)]
)
def test_a_fraction_is_counted_exactly(small_stack, num_gpus, replicas, pods) -> None:
    model = {"num_gpus": num_gpus, "max_replicas": replicas, "num_cpus": 0.1, "weights_gib": 0.01, "request_gib": 0}
    mapping = small_stack(pool={"instance_type": "g6.4xlarge", "max_nodes": 9}, model=model)
    assert planned(mapping).pools[0].max_pods == pods


def test_every_second_replica_on_the_cpu_counts_for_a_pod_lost_to_gpu_replicas(small_stack) -> None:
    def pods(on_cpu: int) -> int:
        mapping = small_stack(pool={"max_nodes": 20}, model={"max_replicas": 2})
        other = {**mapping["models"][0], **CPU, "name": "other", "route": "/o", "max_replicas": on_cpu, "num_cpus": 0.5}
        return planned({**mapping, "models": [*mapping["models"], other]}).pools[0].max_pods

    assert [pods(count) for count in (1, 2, 3, 8)] == [2, 3, 3, 8]


@pytest.mark.parametrize(
    ("head", "fits"),
    [
        ({"head_memory_gib": 11}, True),  # 16 GiB, 4 for the node, 1 for the autoscaler
        ({"head_memory_gib": 11.1}, False),
        ({"head_cpus": 2}, True),
        ({"head_cpus": 3}, False),
    ],
)
def test_the_head_and_its_autoscaler_fit_a_system_node(small_stack, head, fits) -> None:
    mapping = small_stack(ray=head)
    if fits:
        assert planned(mapping).head.autoscaler_cpu_m == 500
        return
    text = refusal(mapping)
    assert f"ray.{next(iter(head))}: got {next(iter(head.values())):g}, with the autoscaler's" in text
    assert "m7i.xlarge leaves" in text


def test_both_heads_of_an_upgrade_fit_the_system_nodes(small_stack) -> None:
    mapping = small_stack(pool={"max_nodes": 2}, ray={"upgrade": "new_cluster"}, cluster={"system_nodes": 1})
    assert "cluster.system_nodes: got 1, 1 x m7i.xlarge hold 1 head pod, an upgrade runs 2" in refusal(mapping)
    mapping["cluster"]["system_instance_type"] = "m7i.2xlarge"
    assert planned(mapping).head.cpus == 2, "two heads fit one larger node"


def test_the_system_nodes_of_an_existing_cluster_are_not_judged(small_stack) -> None:
    mapping = small_stack(ray={"head_memory_gib": 400, "head_cpus": 60}, cluster={"existing_name": "shared"})
    assert planned(mapping).head.cpus == 60


def test_the_models_of_every_pool_fit_the_one_budget_of_the_application(small_stack) -> None:
    # The large pool alone could hold the model three times; the small pool's budget is what the application gets.
    mapping = small_stack(model={"node_group": "l4"})
    mapping["node_groups"][0]["cache_budget_gib"] = 10
    mapping["node_groups"].append({"name": "big", "instance_type": "g6e.2xlarge", "max_nodes": 1})
    large = {"name": "large", "route": "/large", "node_group": "big", "weights_gib": 20}
    mapping["models"].append({**mapping["models"][0], **large})
    text = refusal(mapping)
    assert "node_groups[1] (big).cache_budget_gib: the models need 60.00 GiB" in text
    assert "may hold 10.00 GiB, the least of all pools" in text
    mapping["node_groups"][0]["cache_budget_gib"] = 60
    capacity = planned(mapping)
    assert capacity.serving.cache_budget_bytes == 60 * 1024**3
    assert {pool.cache_budget_bytes for pool in capacity.pools} == {60 * 1024**3}, "shown is what is rendered"


def test_more_models_than_a_policy_takes_are_refused_before_the_role_is_made(small_stack) -> None:
    mapping = small_stack(pool={"instance_type": "g6.4xlarge", "max_nodes": 90}, model={"num_cpus": 0.01})
    first = mapping["models"][0]
    mapping["models"] = [
        {**first, "name": f"m{n}", "route": f"/{n}", "uri": f"s3://models/{'x' * 60}-{n}/", "weights_gib": 0.01}
        for n in range(80)
    ]
    assert "models: 80 URIs make a policy of" in refusal(mapping)


USABLE_TYPES = sorted(
    name for name, row in instance_types().items() if not instance_problem(name) and row.ami_type_al2023 != "CUSTOM"
)
SIZES = [0.1, 0.25, 0.3, 0.35, 0.5, 0.7, 1, 2, 3, 4, 5, 8]


@st.composite
def stacks(draw):
    """One or two pools with one to three models each: of one size, of several, on GPUs or not."""
    pools, models = [], []
    for pool in range(draw(st.integers(1, 2))):
        instance = draw(st.sampled_from(USABLE_TYPES))
        minimum = draw(st.integers(0, 3))
        bounds = {"min_nodes": minimum, "max_nodes": draw(st.integers(max(1, minimum), 30))}
        pools.append({"name": f"p{pool}", "instance_type": instance, **bounds})
        common = draw(st.sampled_from(SIZES))
        for number in range(draw(st.integers(1, 3))):
            most = draw(st.integers(1, 8))
            size = draw(st.sampled_from([*[common] * 8, 0, 0, draw(st.sampled_from(SIZES))]))
            models.append(
                {
                    "name": f"m{pool}{number}",
                    "route": f"/m{pool}/{number}",
                    "model_class": "a:B",
                    "uri": draw(st.sampled_from(["s3://bucket/m/", "file:///models/m/"])),
                    "node_group": f"p{pool}",
                    "weights_gib": draw(st.floats(0.01, 4)),
                    "gpu_gib": draw(st.sampled_from([0.1, 1.0, 10.0])),
                    "host_peak_gib": draw(st.floats(0.01, 4)),
                    "num_cpus": draw(st.sampled_from([0.1, 0.5, 1])),
                    "num_gpus": size,
                    "device": "cuda" if size else "cpu",
                    "dtype": draw(st.sampled_from(["auto", "auto", "float16", "float32"])),
                    "keep_converted": draw(st.booleans()),
                    "variants": [
                        {"name": f"v{n}", "uri": draw(st.sampled_from(["s3://bucket/v/", "file:///models/v/"]))}
                        for n in range(draw(st.sampled_from([0, 0, 1, 3])))
                    ],
                    "min_replicas": draw(st.integers(0, most)),
                    "max_replicas": most,
                }
            )
    upgrade = draw(st.sampled_from(["none", "new_cluster"]))
    return {
        "environment": "dev",
        "region": "us-east-1",
        "node_groups": pools,
        "models": models,
        "serving": draw(st.sampled_from([{}, {}, {"rate_cap_mib_per_s": 1}])),
        "ray": {"image": "r/serving:1-ray2.60.0", "upgrade": upgrade},
    }


def guarded(pool, members) -> float:
    """What a full pod takes while nobody loads: the least that its guard has to let pass."""
    on_gpus = [m for m in members if m.settings.device is Device.CUDA]
    on_cpus = [m for m in members if m.settings.device is Device.CPU]
    taken = sum(actor_memory_bytes(m.settings) for m in on_cpus) + SYSTEM_FIXED_BYTES + pool.pod.shm_bytes
    return taken + max(
        (m.replicas_per_pod * (actor_memory_bytes(m.settings) - m.settings.host_peak_bytes) for m in on_gpus), default=0
    )


@given(stacks())
def test_whatever_is_planned_fits_and_whatever_does_not_fit_is_refused(mapping) -> None:
    try:
        capacity = planned(mapping)
    except SettingsError:
        return
    assert ServingSettings.from_mapping(capacity.serving.to_mapping()) == capacity.serving
    clusters = 2 if mapping["ray"]["upgrade"] == "new_cluster" else 1
    for pool in capacity.pools:
        members = [model for model in capacity.models if model.pool == pool.name]
        on_gpus = [model for model in members if model.settings.device is Device.CUDA]
        on_cpus = [model for model in members if model.settings.device is Device.CPU]
        assert len({model.settings.num_gpus for model in on_gpus}) <= 1
        for bound, pods in (("min_replicas", pool.min_pods), ("max_replicas", pool.max_pods)):
            gpu_replicas = sum(getattr(model.settings, bound) for model in on_gpus)
            cpu_replicas = sum(getattr(model.settings, bound) for model in on_cpus)
            assert pods >= cpu_replicas, "the last CPU replica finds a pod without one"
            if on_gpus:
                places = on_gpus[0].replicas_per_pod
                assert places * on_gpus[0].settings.num_gpus <= pool.gpus_per_pod + 1e-9
                assert (pods - cpu_replicas // 2) * places >= gpu_replicas, "the last GPU replica finds its place"
        actors = sum(actor_memory_bytes(model.settings) for model in on_cpus)
        actors += max((m.replicas_per_pod * actor_memory_bytes(m.settings) for m in on_gpus), default=0)
        assert pool.pod.actors_bytes >= actors, "Ray may place as many replicas as the GPUs allow"
        assert needed_pod_bytes(pool.pod.actors_bytes, pool.pod.mapped_weights_bytes) <= pool.pod.limit_bytes
        assert pool.pods_per_node * pool.pod.limit_bytes <= pool.instance.allocatable_memory_mib * MIB
        assert pool.pods_per_node * pool.cpus_per_pod * 1000 <= pool.instance.allocatable_cpu_m
        assert pool.pods_per_node * pool.gpus_per_pod <= pool.instance.gpu_count
        cpus = sum(m.settings.num_cpus for m in on_cpus)
        cpus += max((m.replicas_per_pod * m.settings.num_cpus for m in on_gpus), default=0)
        assert cpus <= pool.cpus_per_pod
        assert clusters * pool.max_pods <= pool.max_nodes * pool.pods_per_node, "Ray's bound within the node group's"
        assert pool.min_nodes <= pool.nodes_at_rest <= pool.nodes_at_peak or pool.nodes_at_rest == pool.min_nodes
        assert pool.nodes_at_rest == max(pool.min_nodes, math.ceil(pool.min_pods / pool.pods_per_node))
        assert pool.nodes_at_rest <= pool.max_nodes
        usable = usable_device_bytes(pool.instance.gpu_memory_mib * MIB)
        for model in on_gpus:
            held = model.settings.gpu_bytes + bool(model.settings.variants) * model.settings.weights_bytes
            needed = CUDA_CONTEXT_BYTES + held / max(1, model.settings.num_gpus)
            assert needed <= usable * min(1, model.settings.num_gpus), "a loaded variant has its place beside the model"
        assert guarded(pool, members) <= capacity.serving.memory_guard_fraction * pool.pod.limit_bytes
        copies = {"auto": 0, "float16": 1, "float32": 2}
        kept, made = 0, 0
        for model in (m.settings for m in members):
            copy = copies[model.dtype.value] * model.keep_converted * model.weights_bytes
            for uri in (model.uri, *(variant.uri for variant in model.variants)):
                if uri.startswith("s3://"):
                    kept += model.weights_bytes + copy
                    made = max(made, model.weights_bytes, copy)
        needed = 2 * kept + made
        assert needed <= capacity.serving.cache_budget_bytes <= CACHE_DISK_FRACTION * pool.disk_bytes
