"""How a node of a pool is cut into worker pods."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eks_gpu_serving.planning.instances import InstanceType
from eks_gpu_serving.planning.models import replicas_per_gpu
from ray_model_serving.contract.memory import MIB
from ray_model_serving.contract.settings import Device, ModelSettings

# Requests of the daemon sets of a GPU node: VPC CNI, kube-proxy, Pod Identity agent, node monitoring, device plugin.
DAEMON_SETS_CPU_M = 400
DAEMON_SETS_MEMORY_MIB = 640


@dataclass(frozen=True, kw_only=True)
class PodShape:
    """What one worker pod is made of, before its memory is divided."""

    gpus_per_pod: int
    pods_per_node: int
    cpus_per_pod: int
    share_bytes: int
    """The pod's share of the node's memory, the most that its limit can be."""


def pod_shape(instance: InstanceType, models: Sequence[ModelSettings]) -> PodShape:
    """One pod per replica where replicas take whole GPUs: a replica that dies takes no neighbour with it."""
    gpus_per_pod = min(max(1, math.ceil(max(model.num_gpus for model in models))), instance.gpu_count)
    pods_per_node = instance.gpu_count // gpus_per_pod
    memory_mib = (instance.allocatable_memory_mib - DAEMON_SETS_MEMORY_MIB) // pods_per_node
    # KubeRay rounds a fractional CPU limit up and Ray would then promise a CPU that the pod lacks: whole CPUs only.
    cpus = (instance.allocatable_cpu_m - DAEMON_SETS_CPU_M) // 1000 // pods_per_node
    return PodShape(
        gpus_per_pod=gpus_per_pod, pods_per_node=pods_per_node, cpus_per_pod=cpus, share_bytes=memory_mib * MIB
    )


def replicas_per_pod(model: ModelSettings, shape: PodShape) -> int:
    """How many replicas of one model a pod can hold at most."""
    if model.device is Device.CPU:
        return 1
    if model.num_gpus < 1:
        return replicas_per_gpu(model) * shape.gpus_per_pod
    return shape.gpus_per_pod // int(model.num_gpus)


def pods_for(models: Sequence[ModelSettings], shape: PodShape, replicas: Callable[[ModelSettings], int]) -> int:
    """Pods with which all replicas run, wherever Ray places each of them.

    ``replicas`` says how many of a model. All GPU models have one size, so a pod is so many equal places.
    A pod has room for one replica of each CPU model besides; two of one may take the memory of a GPU replica, so that
    every second one counts for a pod that is lost to GPU replicas.
    """
    gpu_models = [model for model in models if model.device is Device.CUDA]
    on_gpus = sum(replicas(model) for model in gpu_models)
    on_cpus = sum(replicas(model) for model in models if model.device is Device.CPU)
    gpu_pods = math.ceil(on_gpus / min(replicas_per_pod(model, shape) for model in gpu_models)) if gpu_models else 0
    return max(gpu_pods + on_cpus // 2 if gpu_models else 0, on_cpus)
