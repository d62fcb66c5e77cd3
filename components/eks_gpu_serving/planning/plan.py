"""``plan(settings)``: proof in numbers that the stack fits, or every reason why it does not."""

from eks_gpu_serving.planning.capacity import CapacityPlan, Cost, HeadPlan, ModelPlan, PoolPlan
from eks_gpu_serving.planning.models import serving_model
from eks_gpu_serving.planning.pools import Beside, plan_pool
from eks_gpu_serving.planning.shapes import pod_shape, replicas_per_pod
from eks_gpu_serving.planning.system_nodes import SYSTEM_INSTANCES
from eks_gpu_serving.planning.timeouts import connections_for, fetch_seconds, plan_timeouts
from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.deployments import INGRESS_CPUS
from ray_model_serving.contract.memory import GIB, actor_memory_bytes, ingress_memory_bytes
from ray_model_serving.contract.paths import CACHE_MOUNT_PATH
from ray_model_serving.contract.problems import Problems, SettingsError
from ray_model_serving.contract.settings import CacheMedium, ServingSettings

# https://aws.amazon.com/eks/pricing/ (2026): a cluster on a Kubernetes version in standard support.
CONTROL_PLANE_USD_PER_HOUR = 0.10
# Kubelet and system reserve, CoreDNS, the KubeRay operator and the other pods of a system node.
_SYSTEM_NODE_RESERVE_GIB = 4.0
_SYSTEM_NODE_RESERVE_CPUS = 1.0


class RefusedError(SettingsError):
    """Well-formed settings whose stack cannot work; ``problems`` has every reason."""

    kind = "refused"


def plan(settings: StackSettings) -> CapacityPlan:
    """Size everything. Raises :class:`RefusedError` with every refusal at once."""
    problems = Problems()
    resolved = {model.name: serving_model(settings, model) for model in settings.models}
    pool_of = {model.name: settings.pool_of(model) for model in settings.models}
    everything = tuple(resolved.values())
    beside = Beside(memory_bytes=ingress_memory_bytes(everything), cpus=INGRESS_CPUS if len(everything) > 1 else 0.0)
    pools: list[PoolPlan] = []
    for index, group in enumerate(settings.node_groups):
        members = [model for name, model in resolved.items() if pool_of[name] == group.name]
        path = f"node_groups[{index}] ({group.name})"
        if not members:
            problems.add(path, "no model runs on this pool; remove it or name it in a model's node_group")
            continue
        pool = plan_pool(group, members, beside, settings.ray.upgrade, path, problems)
        pools += [pool] if pool else []
    _check_head(settings, problems)
    if problems:
        raise RefusedError(problems.found, source=f"{settings.environment.value}: the stack does not fit")
    by_name = {pool.name: pool for pool in pools}
    models: list[ModelPlan] = []
    for name, model in resolved.items():
        instance = by_name[pool_of[name]].instance
        shape = pod_shape(instance, [m for n, m in resolved.items() if pool_of[n] == pool_of[name]])
        models.append(
            ModelPlan(
                settings=model,
                pool=pool_of[name],
                actor_memory_bytes=actor_memory_bytes(model),
                replicas_per_pod=replicas_per_pod(model, shape),
                fetch_s=fetch_seconds(model.weights_bytes, instance),
            )
        )
    timeouts = plan_timeouts(models)
    serving = ServingSettings(
        models=everything,
        cache_root=CACHE_MOUNT_PATH,
        cache_budget_bytes=min(pool.cache_budget_bytes for pool in pools),
        cache_medium=CacheMedium.INSTANCE_STORE,
        load_deadline_s=timeouts.load_deadline_s,
        connections=min(connections_for(pool.instance) for pool in pools),
    )
    head = HeadPlan(cpus=settings.ray.head_cpus, memory_bytes=round(settings.ray.head_memory_gib * GIB))
    return CapacityPlan(
        pools=tuple(pools),
        models=tuple(models),
        head=head,
        serving=serving,
        timeouts=timeouts,
        cost=_cost(settings, pools),
    )


def _check_head(settings: StackSettings, problems: Problems) -> None:
    system = SYSTEM_INSTANCES[settings.cluster.system_instance_type]
    rooms = {
        "ray.head_memory_gib": (settings.ray.head_memory_gib, system.memory_gib - _SYSTEM_NODE_RESERVE_GIB, "GiB"),
        "ray.head_cpus": (settings.ray.head_cpus, system.vcpu - _SYSTEM_NODE_RESERVE_CPUS, "CPUs"),
    }
    if settings.cluster.existing_name:
        return  # the system nodes of an existing cluster are not ours to know
    for path, (asked, room, unit) in rooms.items():
        if asked > room:
            problems.add(
                path,
                f"got {asked:g} {unit}, {settings.cluster.system_instance_type} leaves {room:g} {unit} for the head",
            )


def _cost(settings: StackSettings, pools: list[PoolPlan]) -> Cost:
    fixed = 0.0
    if settings.cluster.existing_name is None:
        system = SYSTEM_INSTANCES[settings.cluster.system_instance_type]
        fixed = CONTROL_PLANE_USD_PER_HOUR + settings.cluster.system_nodes * system.usd_per_hour
    return Cost(
        min_usd_per_hour=_total(fixed, [pool.usd_per_hour_min for pool in pools]),
        max_usd_per_hour=_total(fixed, [pool.usd_per_hour_max for pool in pools]),
    )


def _total(fixed: float, parts: list[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return fixed + sum(known) if len(known) == len(parts) else None
