"""Sizes one GPU pool and its worker pods, and refuses what does not fit, with both numbers in the text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eks_gpu_serving.planning.capacity import PoolPlan
from eks_gpu_serving.planning.instances import instance_types
from eks_gpu_serving.planning.models import gpus_taken
from eks_gpu_serving.planning.refusals import cache_budget, check_devices, check_gpus, check_pod, check_upgrade
from eks_gpu_serving.planning.shapes import PodShape, pod_shape, replicas_per_pod
from eks_gpu_serving.settings import NodeGroupSettings, Upgrade
from ray_model_serving.contract.memory import GIB, actor_memory_bytes, needed_pod_bytes, split_pod
from ray_model_serving.contract.problems import Problems
from ray_model_serving.contract.settings import Device, ModelSettings

_GB = 1000**3


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What Ray may place on any worker pod beside replicas: the ingress of an application with several models."""

    memory_bytes: int
    cpus: float


def plan_pool(
    group: NodeGroupSettings,
    models: Sequence[ModelSettings],
    beside: Beside,
    upgrade: Upgrade,
    path: str,
    problems: Problems,
) -> PoolPlan | None:
    """The pool's plan; None where a refusal went to ``problems``."""
    before = len(problems.found)
    instance = instance_types()[group.instance_type]
    shape = pod_shape(instance, models)
    check_gpus(group, instance, models, path, problems)
    check_devices(instance, models, path, problems)
    actors_bytes, mapped_bytes, cpus = _worst_pod(models, shape, beside)
    check_pod(group, instance, shape, needed_pod_bytes(actors_bytes, mapped_bytes), cpus, path, problems)
    min_pods, max_pods = (_pods_for(models, shape, bound) for bound in ("min_replicas", "max_replicas"))
    check_upgrade(group, shape, max_pods, upgrade, path, problems)
    disk_bytes = instance.nvme_total_gb * _GB
    cache_budget_bytes = cache_budget(group, disk_bytes, models, path, problems)
    if len(problems.found) > before:
        return None
    limit_bytes = shape.share_bytes if group.pod_memory_gib is None else math.floor(group.pod_memory_gib * GIB)
    price = instance.usd_per_hour
    nodes_at_rest = max(group.min_nodes, math.ceil(min_pods / shape.pods_per_node))
    return PoolPlan(
        name=group.name,
        instance=instance,
        operating_system=group.operating_system,
        min_nodes=group.min_nodes,
        max_nodes=group.max_nodes,
        nodes_at_rest=nodes_at_rest,
        pods_per_node=shape.pods_per_node,
        gpus_per_pod=shape.gpus_per_pod,
        cpus_per_pod=shape.cpus_per_pod,
        pod=split_pod(limit_bytes, actors_bytes, mapped_bytes),
        min_pods=min_pods,
        max_pods=max_pods,
        cache_budget_bytes=cache_budget_bytes,
        disk_bytes=disk_bytes,
        usd_per_hour_min=None if price is None else price * nodes_at_rest,
        usd_per_hour_max=None if price is None else price * group.max_nodes,
    )


def _worst_pod(models: Sequence[ModelSettings], shape: PodShape, beside: Beside) -> tuple[int, int, float]:
    """Actor memory, mapped weights and CPUs of the most demanding mix of replicas that Ray may place on one pod."""
    gpu_models = [model for model in models if model.device is Device.CUDA]
    cpu_models = [model for model in models if model.device is Device.CPU]
    actors = beside.memory_bytes + sum(actor_memory_bytes(model) for model in cpu_models)
    cpus = beside.cpus + sum(model.num_cpus for model in cpu_models)
    mapped = sum(model.weights_bytes for model in cpu_models)
    if len(gpu_models) == 1:
        count = replicas_per_pod(gpu_models[0], shape)
        actors += count * actor_memory_bytes(gpu_models[0])
        cpus += count * gpu_models[0].num_cpus
    elif gpu_models:
        # Any mix is possible: the model with the most memory (CPUs) per GPU bounds it from above.
        actors += math.ceil(shape.gpus_per_pod * max(actor_memory_bytes(m) / m.num_gpus for m in gpu_models))
        cpus += shape.gpus_per_pod * max(model.num_cpus / model.num_gpus for model in gpu_models)
    return actors, mapped, cpus


def _pods_for(models: Sequence[ModelSettings], shape: PodShape, bound: str) -> int:
    gpus = sum(gpus_taken(model, getattr(model, bound)) for model in models)
    cpu_pods = max((getattr(model, bound) for model in models if model.device is Device.CPU), default=0)
    return max(math.ceil(gpus / shape.gpus_per_pod - 1e-9), cpu_pods)
