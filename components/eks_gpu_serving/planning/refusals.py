"""What a pool is refused for. Every text has both numbers and what to do."""

import math
from collections.abc import Sequence

from eks_gpu_serving.planning.instances import InstanceType, instance_types
from eks_gpu_serving.planning.models import converted_bytes, downloads
from eks_gpu_serving.planning.shapes import PodShape
from eks_gpu_serving.settings import NodeGroupSettings
from ray_model_serving.contract.deployments import most_replicas
from ray_model_serving.contract.memory import (
    CUDA_CONTEXT_BYTES,
    GIB,
    MIB,
    OBJECT_STORE_BYTES,
    SHM_SURPLUS_BYTES,
    SYSTEM_FIXED_BYTES,
    device_bytes,
    needed_device_bytes,
    resident_variant_bytes,
    usable_device_bytes,
)
from ray_model_serving.contract.problems import Problems
from ray_model_serving.contract.settings import Device, ModelSettings

# kubelet frees images from 85 % disk use and evicts pods from 90 % (nodefs.available<10%); images, logs and emptyDir
# share the disk with the cache, so the cache stays well below.
CACHE_DISK_FRACTION = 0.6
# The running version and the one that replaces it.
SNAPSHOTS_KEPT = 2


def check_gpus(instance: InstanceType, models: Sequence[ModelSettings], path: str, problems: Problems) -> bool:
    """Each replica against the GPUs of one node, and the sizes of a pool against each other. Whether all is well."""
    before = len(problems.found)
    for model in models:
        if model.num_gpus > instance.gpu_count:
            problems.add(
                path,
                f"a replica of {model.name!r} needs {model.num_gpus:g} GPUs, {instance.name} has {instance.gpu_count}; "
                "choose a larger instance type",
            )
    on_gpus = [model for model in models if model.device is Device.CUDA]
    if len({model.num_gpus for model in on_gpus}) > 1:
        sizes = ", ".join(f"{model.name} {model.num_gpus:g}" for model in on_gpus)
        problems.add(
            path,
            f"its models have different num_gpus ({sizes}): small replicas on every GPU leave no place for a large one "
            "although enough is free in sum, and Ray moves none of them; write the same num_gpus or give each size a "
            "pool of its own",
        )
    return len(problems.found) == before


def check_devices(instance: InstanceType, models: Sequence[ModelSettings], path: str, problems: Problems) -> None:
    """Weights, activations and loaded variants against the memory of a GPU."""
    usable = usable_device_bytes(instance.gpu_memory_mib * MIB)
    for model in models:
        if model.device is Device.CPU:
            continue
        # Each replica stays within its fraction of the device, so that every mix of models fits.
        share = math.floor(usable * min(model.num_gpus, 1))
        devices = max(model.num_gpus, 1)
        per_device = math.ceil(device_bytes(model) / devices)
        if needed_device_bytes([per_device]) > share:
            variants = resident_variant_bytes(model)
            parts = f"{_gib(model.gpu_bytes / devices)}"
            parts += f", {_gib(variants / devices)} for loaded variants" if variants else ""
            otherwise = ", lower resident_gib" if (model.resident_bytes or 0) > model.weights_bytes else ""
            problems.add(
                path,
                f"a replica of {model.name!r} needs {_gib(needed_device_bytes([per_device]))} GiB on a GPU "
                f"({parts} and {_gib(CUDA_CONTEXT_BYTES)} for its CUDA context), its share of "
                f"{model.num_gpus:g} of a {instance.gpu_name} is {_gib(share)} GiB; raise num_gpus{otherwise} or "
                "choose a larger GPU",
            )


def check_pod(
    group: NodeGroupSettings,
    instance: InstanceType,
    shape: PodShape,
    needed_bytes: int,
    needed_cpus: float,
    path: str,
    problems: Problems,
) -> None:
    """The worst mix of replicas against a pod's memory and CPUs."""
    if needed_bytes > shape.share_bytes:
        problems.add(
            path,
            f"a worker pod needs {_gib(needed_bytes)} GiB (load peak, requests, object store and Ray), "
            f"{shape.pods_per_node} on {instance.name} leave {_gib(shape.share_bytes)} GiB each; "
            "lower host_peak_gib (convert the model to its dtype) or choose a larger instance type",
        )
    if needed_cpus > shape.cpus_per_pod:
        problems.add(
            path,
            f"the replicas of a worker pod need {needed_cpus:g} CPUs, a pod on {instance.name} has "
            f"{shape.cpus_per_pod}; lower num_cpus or choose a larger instance type",
        )
    if group.pod_memory_gib is None:
        return
    limit_bytes = group.pod_memory_gib * GIB
    if limit_bytes < needed_bytes:
        problems.add(
            f"{path}.pod_memory_gib",
            f"got {group.pod_memory_gib:g}, the replicas need {_gib(needed_bytes)} GiB at the peak of a load",
        )
    if limit_bytes > shape.share_bytes:
        problems.add(
            f"{path}.pod_memory_gib",
            f"got {group.pod_memory_gib:g}, a pod's share of {instance.name} is {_gib(shape.share_bytes)} GiB",
        )


def check_guard(
    group: NodeGroupSettings, limit_bytes: int, serving_bytes: int, fraction: float, path: str, problems: Problems
) -> None:
    """What a pod takes while its replicas serve, which the plan counts on, against where they begin to refuse work."""
    # Mapped files are no part of what the guard looks at; the object store is.
    taken_bytes = serving_bytes + OBJECT_STORE_BYTES + SHM_SURPLUS_BYTES + SYSTEM_FIXED_BYTES
    guard_bytes = math.floor(fraction * limit_bytes)
    if taken_bytes > guard_bytes:
        problems.add(
            path,
            f"replicas that serve, the object store and Ray take up to {_gib(taken_bytes)} GiB of a worker pod's "
            f"{_gib(limit_bytes)} GiB, serving.memory_guard_fraction {fraction:g} refuses work from "
            f"{_gib(guard_bytes)} GiB on; raise it, "
            f"{'raise pod_memory_gib, ' if group.pod_memory_gib is not None else ''}lower limits.max_ongoing_requests "
            "or choose a larger instance type",
        )


def check_room(
    group: NodeGroupSettings,
    models: Sequence[ModelSettings],
    shape: PodShape,
    max_pods: int,
    clusters: int,
    path: str,
    problems: Problems,
) -> None:
    """The pods of the most replicas, and of the second cluster of an upgrade, against the nodes of the pool."""
    room = group.max_nodes * shape.pods_per_node
    needed = clusters * max_pods
    if needed <= room:
        return
    pods = f"{max_pods} worker pod{'s' if max_pods > 1 else ''} of {shape.gpus_per_pod} GPU"
    detail = ", ".join(
        f"{m.name} {m.max_replicas}{f' and {most_replicas(m) - m.max_replicas} of its surge' if m.surge else ''} x "
        f"{m.num_gpus:g} GPU"
        for m in models
    )
    upgrade = f", an upgrade runs two clusters and needs {needed}" if clusters > 1 else ""
    otherwise = ", lower max_replicas or write ray.upgrade none" if clusters > 1 else " or lower max_replicas"
    problems.add(
        f"{path}.max_nodes",
        f"max_replicas asks for {pods} ({detail}){upgrade}; {group.max_nodes} x {group.instance_type} hold {room}; "
        f"write max_nodes {math.ceil(needed / shape.pods_per_node)}{otherwise}",
    )


def cache_budget(group: NodeGroupSettings, disk_bytes: int) -> int:
    """The bytes that the node cache may hold on a node of this pool."""
    return most_cache(disk_bytes) if group.cache_budget_gib is None else math.floor(group.cache_budget_gib * GIB)


def most_cache(disk_bytes: int) -> int:
    """The most that a cache budget may be."""
    return math.floor(disk_bytes * CACHE_DISK_FRACTION)


def check_cache(
    group: NodeGroupSettings, budget_bytes: int, models: Sequence[ModelSettings], path: str, problems: Problems
) -> None:
    """The pool's own budget against its disk, and what its models need against the budget of the whole application."""
    disk_bytes = instance_types()[group.instance_type].disk_bytes
    most, own = most_cache(disk_bytes), cache_budget(group, disk_bytes)
    if own > most:
        problems.add(
            f"{path}.cache_budget_gib",
            f"got {group.cache_budget_gib:g}, at most {_gib(most)} GiB: {CACHE_DISK_FRACTION:.0%} of the "
            f"{_gib(disk_bytes)} GiB disk, which kubelet and containerd share",
        )
    needed = needed_cache_bytes(models)
    if needed > budget_bytes:
        least = "" if own == budget_bytes else ", the least of all pools: the application has one budget"
        problems.add(
            f"{path}.cache_budget_gib",
            f"the models need {_gib(needed)} GiB ({SNAPSHOTS_KEPT} snapshots of each{_more(models)} and one being "
            f"fetched), the cache may hold {_gib(budget_bytes)} GiB{least}",
        )


def needed_cache_bytes(models: Sequence[ModelSettings]) -> int:
    """What the node cache has to hold: two versions of each model and variant with the converted copy of each, and the
    largest snapshot or copy once more while it is made. A variant counts as large as its model, the most it may be."""
    kept = sum(downloads(model) * (model.weights_bytes + converted_bytes(model)) for model in models)
    made = [max(model.weights_bytes, converted_bytes(model)) for model in models if downloads(model)]
    return SNAPSHOTS_KEPT * kept + max(made, default=0)


def _more(models: Sequence[ModelSettings]) -> str:
    fetched = [model for model in models if downloads(model)]
    variants = " and of its variants" if any(model.variants for model in fetched) else ""
    return variants + (", a copy in another dtype beside each" if any(map(converted_bytes, fetched)) else "")


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f}"
