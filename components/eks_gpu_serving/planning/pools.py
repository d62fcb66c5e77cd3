"""Sizes one GPU pool and its worker pods, and refuses what does not fit, with both numbers in the text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from eks_gpu_serving.planning.capacity import PoolPlan
from eks_gpu_serving.planning.instances import instance_types
from eks_gpu_serving.planning.refusals import check_cache, check_devices, check_gpus, check_guard, check_pod, check_room
from eks_gpu_serving.planning.shapes import PodShape, pod_shape, pods_for, replicas_per_pod
from eks_gpu_serving.settings import NodeGroupSettings, Upgrade
from ray_model_serving.contract.deployments import most_replicas
from ray_model_serving.contract.memory import GIB, actor_memory_bytes, needed_pod_bytes, split_pod
from ray_model_serving.contract.problems import Problems
from ray_model_serving.contract.settings import Device, ModelSettings


@dataclass(frozen=True, kw_only=True)
class Around:
    """What the rest of the stack asks of every pool."""

    memory_bytes: int
    """Of the ingress of an application with several models, which Ray may place on any worker pod."""
    cpus: float
    cache_budget_bytes: int
    """One number in the application's settings, so that of the pool with the least."""
    clusters: int
    """2 where an upgrade runs a second one beside the first."""
    memory_guard_fraction: float
    """From this part of a pod's memory on, replicas refuse work."""
    loads_at_once: int
    """On a node."""


def plan_pool(
    group: NodeGroupSettings, models: Sequence[ModelSettings], around: Around, path: str, problems: Problems
) -> PoolPlan | None:
    """The pool's plan; None where a refusal went to ``problems``."""
    before = len(problems.found)
    instance = instance_types()[group.instance_type]
    shape = pod_shape(instance, models)
    check_devices(instance, models, path, problems)
    check_cache(group, around.cache_budget_bytes, models, path, problems)
    if not check_gpus(instance, models, path, problems):
        return None  # what follows would divide a node by replicas that it can't hold
    actors_bytes, mapped_bytes, cpus = _worst_pod(models, shape, around)
    check_pod(group, instance, shape, needed_pod_bytes(actors_bytes, mapped_bytes), cpus, path, problems)
    min_pods, max_pods = (pods_for(models, shape, replicas) for replicas in (attrgetter("min_replicas"), most_replicas))
    check_room(group, models, shape, max_pods, around.clusters, path, problems)
    limit_bytes = shape.share_bytes if group.pod_memory_gib is None else math.floor(group.pod_memory_gib * GIB)
    if len(problems.found) > before:
        return None
    check_guard(group, limit_bytes, _serving_bytes(models, shape, around), around.memory_guard_fraction, path, problems)
    if len(problems.found) > before:
        return None
    price = instance.usd_per_hour
    nodes_at_rest = max(group.min_nodes, math.ceil(min_pods / shape.pods_per_node))
    return PoolPlan(
        name=group.name,
        instance=instance,
        operating_system=group.operating_system,
        min_nodes=group.min_nodes,
        max_nodes=group.max_nodes,
        nodes_at_rest=nodes_at_rest,
        nodes_at_peak=math.ceil(around.clusters * max_pods / shape.pods_per_node),
        pods_per_node=shape.pods_per_node,
        gpus_per_pod=shape.gpus_per_pod,
        cpus_per_pod=shape.cpus_per_pod,
        pod=split_pod(limit_bytes, actors_bytes, mapped_bytes),
        min_pods=min_pods,
        max_pods=max_pods,
        cache_budget_bytes=around.cache_budget_bytes,
        disk_bytes=instance.disk_bytes,
        usd_per_hour_min=None if price is None else price * nodes_at_rest,
        usd_per_hour_max=None if price is None else price * group.max_nodes,
    )


def clusters_at_once(upgrade: Upgrade) -> int:
    """How many Ray clusters an upgrade runs side by side."""
    return 2 if upgrade is Upgrade.NEW_CLUSTER else 1


def _worst_pod(models: Sequence[ModelSettings], shape: PodShape, around: Around) -> tuple[int, int, float]:
    """Actor memory, mapped weights and CPUs of the most demanding mix of replicas that a pod has to hold: each of its
    places taken by the GPU model that asks the most, one replica of every CPU model, and the ingress."""
    gpu_models = [model for model in models if model.device is Device.CUDA]
    cpu_models = [model for model in models if model.device is Device.CPU]
    actors = around.memory_bytes + sum(actor_memory_bytes(model) for model in cpu_models)
    cpus = around.cpus + sum(model.num_cpus for model in cpu_models)
    if gpu_models:
        places = replicas_per_pod(gpu_models[0], shape)
        actors += places * max(actor_memory_bytes(model) for model in gpu_models)
        cpus += places * max(model.num_cpus for model in gpu_models)
    return actors, sum(model.weights_bytes for model in cpu_models), cpus


def _serving_bytes(models: Sequence[ModelSettings], shape: PodShape, around: Around) -> int:
    """What the replicas of a pod and the ingress take while they serve: as :func:`_worst_pod`, but with the load peak
    of those only that may load beside others. On the CPU what a load converts stays."""
    gpu_models = [model for model in models if model.device is Device.CUDA]
    cpu_models = [model for model in models if model.device is Device.CPU]
    serving = around.memory_bytes + sum(actor_memory_bytes(model) for model in cpu_models)
    if gpu_models:
        places = replicas_per_pod(gpu_models[0], shape)
        loading = min(around.loads_at_once, places + len(cpu_models) - 1)
        serving += places * max(actor_memory_bytes(model) - model.host_peak_bytes for model in gpu_models)
        serving += loading * max(model.host_peak_bytes for model in gpu_models)
    return serving
