"""The Ray head pod against the system nodes that it has to land on."""

from eks_gpu_serving.planning.capacity import HeadPlan
from eks_gpu_serving.planning.system_nodes import (
    DEFAULT_SYSTEM_INSTANCE_TYPE,
    DEFAULT_SYSTEM_NODES,
    SYSTEM_INSTANCES,
)
from eks_gpu_serving.settings import StackSettings, Upgrade
from ray_model_serving.contract.memory import GIB
from ray_model_serving.contract.problems import Problems

# KubeRay's default CPU and twice its memory: an autoscaler that is killed stops scaling without a word.
_AUTOSCALER_CPU_M = 500
_AUTOSCALER_MEMORY_BYTES = 1 * GIB
# Kubelet and system reserve, CoreDNS, the KubeRay operator and the other pods of a system node.
_SYSTEM_NODE_RESERVE_BYTES = 4 * GIB
_SYSTEM_NODE_RESERVE_CPU_M = 1000


def plan_head(settings: StackSettings, problems: Problems) -> HeadPlan:
    """The head pod. Refused where the system nodes of a new cluster can't hold it, or both heads of an upgrade; those
    of an existing cluster are not ours to know."""
    head = HeadPlan(
        cpus=settings.ray.head_cpus,
        memory_bytes=round(settings.ray.head_memory_gib * GIB),
        autoscaler_cpu_m=_AUTOSCALER_CPU_M,
        autoscaler_memory_bytes=_AUTOSCALER_MEMORY_BYTES,
    )
    cluster = settings.cluster
    if cluster.existing_name is None:
        instance_type = cluster.system_instance_type or DEFAULT_SYSTEM_INSTANCE_TYPE
        nodes = cluster.system_nodes or DEFAULT_SYSTEM_NODES
        _check(head, settings.ray.upgrade, instance_type, nodes, problems)
    return head


def _check(head: HeadPlan, upgrade: Upgrade, instance_type: str, nodes: int, problems: Problems) -> None:
    system = SYSTEM_INSTANCES[instance_type]
    room_bytes = system.memory_gib * GIB - _SYSTEM_NODE_RESERVE_BYTES
    room_cpu_m = system.vcpu * 1000 - _SYSTEM_NODE_RESERVE_CPU_M
    needed_bytes = head.memory_bytes + head.autoscaler_memory_bytes
    needed_cpu_m = head.cpus * 1000 + head.autoscaler_cpu_m
    if needed_bytes > room_bytes:
        problems.add(
            "ray.head_memory_gib",
            f"got {head.memory_bytes / GIB:g}, with the autoscaler's {head.autoscaler_memory_bytes / GIB:g} the head "
            f"pod needs {needed_bytes / GIB:g} GiB, {instance_type} leaves {room_bytes / GIB:g} GiB; lower it or "
            "choose a larger cluster.system_instance_type",
        )
    if needed_cpu_m > room_cpu_m:
        problems.add(
            "ray.head_cpus",
            f"got {head.cpus}, with the autoscaler's {head.autoscaler_cpu_m / 1000:g} the head pod needs "
            f"{needed_cpu_m / 1000:g} CPUs, {instance_type} leaves {room_cpu_m / 1000:g}; lower it or choose a larger "
            "cluster.system_instance_type",
        )
    held = nodes * min(room_bytes // needed_bytes, room_cpu_m // needed_cpu_m)
    if upgrade is Upgrade.NEW_CLUSTER and held == 1:
        problems.add(
            "cluster.system_nodes",
            f"got {nodes}, {nodes} x {instance_type} hold 1 head pod, an upgrade runs 2 clusters with a head each; "
            "write system_nodes 2, a larger system_instance_type or ray.upgrade none",
        )
