"""The capacity plan for a person and for a machine."""

from dataclasses import asdict
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from eks_gpu_serving.planning.capacity import CapacityPlan, ModelPlan, PoolPlan
from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.memory import GIB
from ray_model_serving.contract.reading import to_mapping


def plan_document(stack: str, settings: StackSettings, plan: CapacityPlan) -> dict[str, Any]:
    """The plan of the stack that was asked for as plain data; sizes in bytes, times in seconds, prices in USD per
    hour."""
    return {
        "stack": stack,
        "environment": settings.environment.value,
        "service": settings.service_name,
        "fits": True,
        "pools": [_pool_document(pool) for pool in plan.pools],
        "models": [to_mapping(model) for model in plan.models],
        "head": asdict(plan.head),
        "timeouts": asdict(plan.timeouts),
        "cost": asdict(plan.cost),
        "notes": list(plan.notes),
        "serving": plan.serving.to_mapping(),
    }


def print_plan(console: Console, settings: StackSettings, plan: CapacityPlan) -> None:
    """The plan as tables."""
    console.print(Text(f"Capacity plan of {settings.service_name} in {settings.region}: it fits", style="bold"))
    console.print(Group(_pools(plan), _memory(plan), _models(plan), _times(plan)))
    console.print(_cost(plan))
    for note in plan.notes:
        console.print(Text(note, style="yellow"))


def _pool_document(pool: PoolPlan) -> dict[str, Any]:
    document = to_mapping(pool)
    document["pod"]["shm_bytes"] = pool.pod.shm_bytes
    return document


def _pools(plan: CapacityPlan) -> RenderableType:
    table = Table(title="Pools", title_justify="left")
    columns = ("pool", "instance", "nodes", "worker pods", "a pod has", "GPU limit", "cache budget", "USD/h")
    for column in columns:
        table.add_column(column)
    for pool in plan.pools:
        table.add_row(
            pool.name,
            f"{pool.instance.name} ({pool.instance.gpu_count} x {pool.instance.gpu_name})",
            f"{pool.min_nodes} to {pool.max_nodes}",
            f"{pool.min_pods} to {pool.max_pods}, {pool.pods_per_node} a node",
            f"{pool.gpus_per_pod} GPU, {pool.cpus_per_pod} CPU, {_gib(pool.pod.limit_bytes)}",
            str(pool.max_nodes * pool.instance.gpu_count),
            f"{_gib(pool.cache_budget_bytes)} of {_gib(pool.disk_bytes)}",
            f"{_usd(pool.usd_per_hour_min)} to {_usd(pool.usd_per_hour_max)}",
        )
    return table


def _memory(plan: CapacityPlan) -> RenderableType:
    table = Table(title="Memory of a worker pod (request = limit)", title_justify="left")
    for column in (
        "pool",
        "limit",
        "replicas (Ray memory)",
        "mapped weights",
        "object store",
        "shared memory",
        "reserve",
    ):
        table.add_column(column)
    for pool in plan.pools:
        pod = pool.pod
        parts = (pod.limit_bytes, pod.actors_bytes, pod.mapped_weights_bytes, pod.object_store_bytes, pod.shm_bytes)
        table.add_row(pool.name, *(_gib(part) for part in (*parts, pod.system_reserve_bytes)))
    return table


def _models(plan: CapacityPlan) -> RenderableType:
    table = Table(title="Models", title_justify="left")
    for column in (
        "model",
        "pool",
        "replicas",
        "a pod holds",
        "load mode",
        "weights",
        "variants",
        "replica memory",
        "GPU memory",
    ):
        table.add_column(column)
    for model in plan.models:
        settings = model.settings
        table.add_row(
            settings.name,
            model.pool,
            f"{settings.min_replicas} to {settings.max_replicas}",
            str(model.replicas_per_pod),
            settings.load_mode.value,
            _gib(settings.weights_bytes),
            _variants(model),
            _gib(model.actor_memory_bytes),
            _gib(model.device_bytes),
        )
    return table


def _variants(model: ModelPlan) -> str:
    count = len(model.settings.variants)
    return f"{count}, {_gib(model.resident_variant_bytes)} loaded" if count else "none"


def _times(plan: CapacityPlan) -> RenderableType:
    times = plan.timeouts
    return Text(
        f"Ready on a new node in about {times.cold_ready_s:.0f} s (estimate), on a node with the model cached in about "
        f"{times.warm_ready_s:.0f} s plus the load. A load fails after {times.load_deadline_s:.0f} s, a pod has "
        f"{times.termination_grace_s} s to end."
    )


def _cost(plan: CapacityPlan) -> RenderableType:
    low, high = plan.cost.min_usd_per_hour, plan.cost.max_usd_per_hour
    return Text(
        f"Cost: {_usd(low)} to {_usd(high)} USD per hour at min and max (on demand, us-east-1: GPU nodes, and system "
        "nodes and control plane of a new cluster; not storage or traffic)"
    )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f} GiB"


def _usd(price: float | None) -> str:
    return "unknown" if price is None else f"{price:.2f}"
