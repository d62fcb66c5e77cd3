"""``plan(settings)``: proof in numbers that the stack fits, or every reason why it does not."""

import math
from collections.abc import Mapping, Sequence

from eks_gpu_serving.identity_documents import policy_problem
from eks_gpu_serving.planning.capacity import CapacityPlan, Cost, ModelPlan, PoolPlan
from eks_gpu_serving.planning.head import plan_head
from eks_gpu_serving.planning.instances import instance_types
from eks_gpu_serving.planning.models import prefetched_variants, serving_model, with_load_time
from eks_gpu_serving.planning.notes import plan_notes
from eks_gpu_serving.planning.pools import Around, clusters_at_once, plan_pool
from eks_gpu_serving.planning.refusals import cache_budget
from eks_gpu_serving.planning.shapes import pod_shape, replicas_per_pod
from eks_gpu_serving.planning.system_nodes import (
    DEFAULT_SYSTEM_INSTANCE_TYPE,
    DEFAULT_SYSTEM_NODES,
    SYSTEM_INSTANCES,
)
from eks_gpu_serving.planning.timeouts import MAX_READY_S, connections_for, fetch_seconds, plan_timeouts, ready_seconds
from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.deployments import INGRESS_CPUS
from ray_model_serving.contract.memory import (
    MIB,
    actor_memory_bytes,
    device_bytes,
    ingress_memory_bytes,
    resident_variant_bytes,
)
from ray_model_serving.contract.paths import CACHE_MOUNT_PATH
from ray_model_serving.contract.problems import Problems, SettingsError
from ray_model_serving.contract.settings import CacheMedium, ModelSettings, ServingSettings

# https://aws.amazon.com/eks/pricing/ (2026): a cluster on a Kubernetes version in standard support.
CONTROL_PLANE_USD_PER_HOUR = 0.10


class RefusedError(SettingsError):
    """Well-formed settings whose stack cannot work; ``problems`` has every reason."""

    kind = "refused"


def plan(settings: StackSettings) -> CapacityPlan:
    """Size everything. Raises :class:`RefusedError` with every refusal at once."""
    problems = Problems()
    rate_cap = _rate_cap(settings)
    resolved = _resolved(settings, rate_cap, problems)
    members = _members(settings, resolved)
    around = _around(settings, tuple(resolved.values()))
    pools: list[PoolPlan] = []
    for index, group in enumerate(settings.node_groups):
        path = f"node_groups[{index}] ({group.name})"
        if not members[group.name]:
            problems.add(path, "no model runs on this pool; remove it or name it in a model's node_group")
            continue
        pool = plan_pool(group, members[group.name], around, path, problems)
        pools += [pool] if pool else []
    head = plan_head(settings, problems)
    too_large = policy_problem(
        model_uris=settings.model_uris,
        region=settings.region,
        kms_key_arns=settings.models_kms_key_arns,
    )
    if too_large:
        problems.add("models", too_large)
    if problems:
        raise RefusedError(problems.found, source=f"{settings.environment.value}: the stack does not fit")
    by_name = {pool.name: pool for pool in pools}
    placed = [(resolved[model.name], settings.pool_of(model)) for model in settings.models]
    models = [_model_plan(model, by_name[pool], members[pool], rate_cap) for model, pool in placed]
    timeouts = plan_timeouts(models)
    serving = ServingSettings(
        models=tuple(resolved.values()),
        cache_root=CACHE_MOUNT_PATH,
        cache_budget_bytes=around.cache_budget_bytes,
        cache_medium=CacheMedium.INSTANCE_STORE,
        loads_at_once_per_node=settings.serving.loads_at_once_per_node,
        memory_guard_fraction=settings.serving.memory_guard_fraction,
        rate_cap_bytes_per_s=rate_cap,
        trace_endpoint=settings.serving.trace_endpoint,
        load_deadline_s=timeouts.load_deadline_s,
        connections=min(connections_for(pool.instance) for pool in pools),
    )
    return CapacityPlan(
        pools=tuple(pools),
        models=tuple(models),
        head=head,
        serving=serving,
        timeouts=timeouts,
        cost=_cost(settings, pools),
        notes=plan_notes(settings, pools, models, timeouts),
    )


def _rate_cap(settings: StackSettings) -> int | None:
    cap = settings.serving.rate_cap_mib_per_s
    return None if cap is None else math.floor(cap * MIB)


def _members(settings: StackSettings, resolved: Mapping[str, ModelSettings]) -> dict[str, list[ModelSettings]]:
    return {
        group.name: [resolved[model.name] for model in settings.models if settings.pool_of(model) == group.name]
        for group in settings.node_groups
    }


def _resolved(settings: StackSettings, rate_cap: int | None, problems: Problems) -> dict[str, ModelSettings]:
    """Every model as the application gets it, its autoscaling tied to the time that its pool needs for a replica."""
    sized = {model.name: serving_model(settings, model) for model in settings.models}
    members = _members(settings, sized)
    expected_s = {
        group.name: math.ceil(ready_seconds(members[group.name], instance_types()[group.instance_type], rate_cap))
        for group in settings.node_groups
    }
    for index, group in enumerate(settings.node_groups):
        if expected_s[group.name] > MAX_READY_S:
            problems.add(
                f"node_groups[{index}] ({group.name})",
                f"a replica on a new node is ready after {expected_s[group.name]} s, nearly all of it to fetch its "
                f"models; the plan takes at most {MAX_READY_S} s: raise serving.rate_cap_mib_per_s or choose an "
                "instance type with more network",
            )
    return {
        model.name: with_load_time(
            model, sized[model.name], float(expected_s[settings.pool_of(model)]), f"models[{index}]", problems
        )
        for index, model in enumerate(settings.models)
    }


def _around(settings: StackSettings, models: Sequence[ModelSettings]) -> Around:
    budgets = [cache_budget(group, instance_types()[group.instance_type].disk_bytes) for group in settings.node_groups]
    return Around(
        memory_bytes=ingress_memory_bytes(models),
        cpus=INGRESS_CPUS if len(models) > 1 else 0.0,
        cache_budget_bytes=min(budgets),
        clusters=clusters_at_once(settings.ray.upgrade),
        memory_guard_fraction=settings.serving.memory_guard_fraction,
        loads_at_once=settings.serving.loads_at_once_per_node,
    )


def _model_plan(
    model: ModelSettings, pool: PoolPlan, members: Sequence[ModelSettings], rate_cap: int | None
) -> ModelPlan:
    return ModelPlan(
        settings=model,
        pool=pool.name,
        actor_memory_bytes=actor_memory_bytes(model),
        replicas_per_pod=replicas_per_pod(model, pod_shape(pool.instance, members)),
        device_bytes=device_bytes(model),
        resident_variant_bytes=resident_variant_bytes(model),
        prefetched_variants=tuple(variant.name for variant in prefetched_variants(model)),
        fetch_s=fetch_seconds(model, pool.instance, rate_cap),
    )


def _cost(settings: StackSettings, pools: list[PoolPlan]) -> Cost:
    fixed = 0.0
    if settings.cluster.existing_name is None:
        system = SYSTEM_INSTANCES[settings.cluster.system_instance_type or DEFAULT_SYSTEM_INSTANCE_TYPE]
        nodes = settings.cluster.system_nodes or DEFAULT_SYSTEM_NODES
        fixed = CONTROL_PLANE_USD_PER_HOUR + nodes * system.usd_per_hour
    return Cost(
        min_usd_per_hour=_total(fixed, [pool.usd_per_hour_min for pool in pools]),
        max_usd_per_hour=_total(fixed, [pool.usd_per_hour_max for pool in pools]),
    )


def _total(fixed: float, parts: list[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return fixed + sum(known) if len(known) == len(parts) else None
