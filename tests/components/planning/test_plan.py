"""The proof: what fits is sized, what does not is refused with both numbers."""

import dataclasses

import pytest

from eks_gpu_serving.planning.instances import instance_problem, instance_types
from eks_gpu_serving.planning.plan import RefusedError, plan
from eks_gpu_serving.planning.shapes import DAEMON_SETS_CPU_M, DAEMON_SETS_MEMORY_MIB, pod_shape
from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.memory import GIB, MIB, ingress_memory_bytes


def planned(mapping):
    return plan(StackSettings.from_mapping(mapping))


def refusal(mapping) -> str:
    with pytest.raises(RefusedError) as caught:
        planned(mapping)
    return str(caught.value)


def test_the_parts_of_a_pods_memory_add_up_to_its_limit(small_stack) -> None:
    pod = planned(small_stack()).pools[0].pod
    parts = pod.object_store_bytes + pod.system_reserve_bytes + pod.actors_bytes + pod.mapped_weights_bytes
    assert parts == pod.limit_bytes
    assert pod.shm_bytes >= pod.object_store_bytes, "Ray falls back to slow files in /tmp when /dev/shm is smaller"


def test_the_pods_of_a_node_leave_room_for_its_daemon_sets(small_stack) -> None:
    pool = planned(small_stack(pool={"instance_type": "g6.12xlarge"})).pools[0]
    assert pool.pods_per_node == 4, "one pod per replica: a replica that dies takes no neighbour with it"
    total = pool.pods_per_node * pool.pod.limit_bytes
    assert total + DAEMON_SETS_MEMORY_MIB * MIB <= pool.instance.allocatable_memory_mib * MIB


def test_replicas_that_do_not_fit_a_pod_are_refused_with_both_numbers(small_stack) -> None:
    # UR-001
    text = refusal(
        small_stack(model={"host_peak_gib": 4, "num_gpus": 0.2, "num_cpus": 0.5, "gpu_gib": 2, "max_replicas": 5})
    )
    assert "a worker pod needs 31.51 GiB" in text
    assert "leave 13.21 GiB each" in text


def test_memory_below_the_load_peak_is_refused_with_both_numbers(small_stack) -> None:
    text = refusal(small_stack(pool={"pod_memory_gib": 6}, model={"host_peak_gib": 8}))
    assert "pod_memory_gib: got 6, the replicas need 12.04 GiB" in text


def test_a_replica_with_more_gpus_than_the_node_is_refused_with_both_numbers(small_stack) -> None:
    assert "needs 2 GPUs, g6.xlarge has 1" in refusal(small_stack(model={"num_gpus": 2}))


def test_max_replicas_over_the_pools_gpus_is_refused_with_both_numbers(small_stack) -> None:
    text = refusal(small_stack(model={"max_replicas": 5}))
    assert "max_nodes: max_replicas asks for 5 worker pods of 1 GPU (embedding 5 x 1 GPU)" in text
    assert "1 x g6.xlarge hold 1; write max_nodes 5" in text


def test_a_fraction_that_wastes_part_of_each_gpu_is_counted_with_the_waste(small_stack) -> None:
    # 0.6 of a GPU: one replica a GPU, so that three replicas need three GPUs and not 1.8.
    text = refusal(small_stack(pool={"max_nodes": 2}, model={"num_gpus": 0.6, "max_replicas": 3}))
    assert "asks for 3 worker pods" in text


def test_weights_that_do_not_fit_the_gpu_are_refused_with_both_numbers(small_stack) -> None:
    text = refusal(small_stack(model={"weights_gib": 30, "gpu_gib": 30}))
    assert "needs 30.50 GiB on a GPU" in text
    assert "is 20.56 GiB" in text


def test_two_replicas_on_one_gpu_each_stay_within_their_fraction(small_stack) -> None:
    assert "its share of 0.5" in refusal(small_stack(model={"num_gpus": 0.5, "gpu_gib": 11}))


def test_an_upgrade_without_room_for_a_second_cluster_is_refused(small_stack) -> None:
    text = refusal(small_stack(ray={"upgrade": "new_cluster"}))
    assert "an upgrade runs two clusters and needs 2; 1 x g6.xlarge hold 1; write max_nodes 2" in text


def test_a_cache_budget_over_the_shared_disk_is_refused_with_both_numbers(small_stack) -> None:
    assert "got 200, at most 139.70 GiB" in refusal(small_stack(pool={"cache_budget_gib": 200}))


def test_models_over_the_cache_budget_are_refused_with_both_numbers(small_stack) -> None:
    text = refusal(small_stack(pool={"cache_budget_gib": 2}))
    assert "the models need 3.00 GiB" in text
    assert "may hold 2.00 GiB" in text


def test_every_refusal_comes_at_once(small_stack) -> None:
    text = refusal(small_stack(pool={"cache_budget_gib": 2}, model={"max_replicas": 5, "gpu_gib": 90, "num_cpus": 9}))
    assert "4 problems" in text


def test_a_pool_without_a_model_is_refused(small_stack) -> None:
    mapping = small_stack(model={"node_group": "l4"})
    mapping["node_groups"].append({"name": "idle", "instance_type": "g6.xlarge", "max_nodes": 1})
    assert "no model runs on this pool" in refusal(mapping)


def test_a_pod_has_room_for_the_ingress_that_several_models_share(small_stack) -> None:
    mapping = small_stack(model={"num_gpus": 0.5})
    alone = planned(mapping).pools[0].pod.actors_bytes
    mapping["models"].append({**mapping["models"][0], "name": "other", "route": "/other"})
    capacity = planned(mapping)
    ingress = ingress_memory_bytes([model.settings for model in capacity.models])
    assert ingress > 0
    assert capacity.pools[0].pod.actors_bytes == alone + ingress, "Ray may place the ingress on any worker pod"


def test_mapped_weights_count_on_a_pod_whose_model_stays_on_the_cpu(small_stack) -> None:
    pool = planned(small_stack(model={"device": "cpu", "num_gpus": 0})).pools[0]
    assert pool.pod.mapped_weights_bytes == 1 * GIB


def test_cost_counts_the_nodes_that_replicas_at_rest_need(small_stack) -> None:
    cost = planned(small_stack(pool={"min_nodes": 0, "max_nodes": 4}, model={"max_replicas": 4})).cost
    assert cost.min_usd_per_hour == pytest.approx(0.10 + 2 * 0.2016 + 0.8048), "one replica at rest keeps one node"
    assert cost.max_usd_per_hour == pytest.approx(0.10 + 2 * 0.2016 + 4 * 0.8048)


def test_a_type_without_a_known_price_has_no_cost_instead_of_a_wrong_one(small_stack) -> None:
    cost = planned(small_stack(pool={"instance_type": "p5e.48xlarge"}, model={"num_gpus": 8})).cost
    assert cost.max_usd_per_hour is None


def test_the_load_deadline_grows_with_the_download(small_stack) -> None:
    small = planned(small_stack()).timeouts.load_deadline_s
    large = planned(small_stack(model={"weights_gib": 40, "gpu_gib": 15, "host_peak_gib": 2})).timeouts.load_deadline_s
    assert small == 300
    assert large >= 5 * 40 * GIB / (2.5e9 / 8), "five times what 40 GiB take at 2.5 Gbit/s"


def test_the_downloads_of_a_pool_wait_for_each_other_and_files_on_disk_are_none(small_stack) -> None:
    def times(*models):
        mapping = small_stack(
            pool={"instance_type": "g6.4xlarge", "max_nodes": 3}, model={"num_gpus": 0.5, **models[0]}
        )
        first = mapping["models"][0]
        mapping["models"] += [{**first, **more, "name": f"m{n}", "route": f"/{n}"} for n, more in enumerate(models[1:])]
        return planned(mapping)

    alone, both = times({"weights_gib": 5}), times({"weights_gib": 5}, {"weights_gib": 5})
    fetch_s = alone.models[0].fetch_s
    assert fetch_s > 0
    assert both.timeouts.cold_ready_s - alone.timeouts.cold_ready_s == pytest.approx(fetch_s)
    on_disk = times({"weights_gib": 5}, {"weights_gib": 5, "uri": "file:///models/other/"})
    assert on_disk.timeouts.cold_ready_s == pytest.approx(alone.timeouts.cold_ready_s)
    assert on_disk.models[1].fetch_s == 0
    assert times({"uri": "file:///models/a/"}).timeouts.load_deadline_s == 300


def test_the_downloads_of_two_pools_do_not_wait_for_each_other(small_stack) -> None:
    mapping = small_stack(model={"node_group": "l4"})
    mapping["node_groups"].append({"name": "other", "instance_type": "g6.xlarge", "max_nodes": 1})
    mapping["models"].append({**mapping["models"][0], "name": "other", "route": "/other", "node_group": "other"})
    alone = planned(small_stack()).timeouts
    assert planned(mapping).timeouts.cold_ready_s == pytest.approx(alone.cold_ready_s)


def test_daemon_sets_have_their_cpus_on_every_type_and_a_pod_has_whole_ones(small_stack) -> None:
    (model,) = planned(small_stack()).serving.models
    for instance in instance_types().values():
        if instance_problem(instance.name):
            continue
        shape = pod_shape(instance, [model])
        left_m = instance.allocatable_cpu_m - shape.pods_per_node * shape.cpus_per_pod * 1000
        assert left_m >= DAEMON_SETS_CPU_M, f"{instance.name}: a pod that asks for the daemon sets' CPUs stays pending"
        assert left_m - DAEMON_SETS_CPU_M < 1000 * shape.pods_per_node, "and none is left unused"
    # No type of the table has so little beyond its whole CPUs that it would show; another may.
    close = dataclasses.replace(instance_types()["g6.xlarge"], allocatable_cpu_m=4000 + DAEMON_SETS_CPU_M - 1)
    assert pod_shape(close, [model]).cpus_per_pod == 3


def test_a_model_on_disk_takes_no_room_in_the_cache(small_stack) -> None:
    mapping = small_stack(pool={"cache_budget_gib": 0.5}, model={"uri": "file:///opt/models/embedding/"})
    assert planned(mapping).serving.cache_budget_bytes == 0.5 * GIB


@pytest.mark.parametrize(("num_cpus", "fits"), [(3, True), (3.0001, False)])
def test_the_cpus_of_a_pod_are_used_to_the_last_and_not_beyond(small_stack, num_cpus, fits) -> None:
    mapping = small_stack(model={"num_cpus": num_cpus})
    if fits:
        assert planned(mapping).pools[0].cpus_per_pod == 3
    else:
        assert "need 3.0001 CPUs, a pod on g6.xlarge has 3" in refusal(mapping)


def test_the_ingress_needs_cpus_beside_the_replicas(small_stack) -> None:
    mapping = small_stack(model={"num_gpus": 0.5, "num_cpus": 1.5})
    assert planned(mapping).pools[0].cpus_per_pod == 3
    mapping["models"].append({**mapping["models"][0], "name": "other", "route": "/other"})
    assert "need 3.25 CPUs, a pod on g6.xlarge has 3" in refusal(mapping)


@pytest.mark.parametrize(("limit", "refused"), [(13, None), (14, "got 14, a pod's share of g6.xlarge is 13.21 GiB")])
def test_a_pods_memory_may_be_its_share_of_the_node_and_not_more(small_stack, limit, refused) -> None:
    mapping = small_stack(pool={"pod_memory_gib": limit})
    if refused:
        assert refused in refusal(mapping)
    else:
        assert planned(mapping).pools[0].pod.limit_bytes == limit * GIB


def test_weights_over_several_gpus_need_their_part_of_each(small_stack) -> None:
    pool = {"instance_type": "g6.12xlarge", "max_nodes": 1}
    model = {"weights_gib": 30, "gpu_gib": 36, "host_peak_gib": 1, "num_gpus": 2}
    assert planned(small_stack(pool=pool, model=model)).pools[0].gpus_per_pod == 2
    assert "needs 36.50 GiB on a GPU" in refusal(small_stack(pool=pool, model={**model, "num_gpus": 1}))
    assert "needs 22.50 GiB on a GPU" in refusal(small_stack(pool=pool, model={**model, "gpu_gib": 44}))


def test_an_existing_cluster_costs_its_gpu_nodes_only(small_stack) -> None:
    cost = planned(small_stack(cluster={"existing_name": "shared"})).cost
    assert cost.min_usd_per_hour == pytest.approx(0.8048), "its control plane and system nodes are paid for already"


def test_system_nodes_of_another_kind_cost_what_they_cost(small_stack) -> None:
    cost = planned(small_stack(cluster={"system_nodes": 3, "system_instance_type": "m7i.2xlarge"})).cost
    assert cost.min_usd_per_hour == pytest.approx(0.10 + 3 * 0.4032 + 0.8048)
