"""What a plan can't do by itself and somebody has to, in sentences."""

from collections.abc import Iterable, Sequence

from eks_gpu_serving.planning.capacity import ModelPlan, PoolPlan, Timeouts
from eks_gpu_serving.settings import StackSettings, Upgrade

# GCS, dashboard, autoscaler and Serve controller of small clusters were reported at 3.5 GiB together
# (ray-project/kuberay#4287); they grow with replicas and requests.
_HEAD_MEMORY_GIB = 8


def plan_notes(
    settings: StackSettings, pools: Sequence[PoolPlan], models: Iterable[ModelPlan], timeouts: Timeouts
) -> tuple[str, ...]:
    """What to know or do besides: nodes that nothing adds, waits that callers see, upgrades that do nothing."""
    upgrade = settings.ray.upgrade
    notes = [_growth(pool, upgrade) for pool in pools if pool.nodes_at_peak > pool.nodes_at_rest]
    notes += [_from_zero(model) for model in models if model.settings.min_replicas == 0]
    if upgrade is Upgrade.NONE:
        notes.append(
            "With ray.upgrade none a change of image or sizes does nothing until the RayService is deleted and made "
            f"again: an outage of about {timeouts.cold_ready_s:.0f} s on new nodes. A new model version needs neither."
        )
    if settings.ray.head_memory_gib < _HEAD_MEMORY_GIB:
        notes.append(
            f"ray.head_memory_gib is {settings.ray.head_memory_gib:g}, below the default of {_HEAD_MEMORY_GIB}: heads "
            "of 2 to 4 GiB are killed after hours of use, and every replica with them."
        )
    return tuple(notes)


def _growth(pool: PoolPlan, upgrade: Upgrade) -> str:
    when = f"{pool.max_pods} worker pods" + (
        ", twice as many during an upgrade" if upgrade is Upgrade.NEW_CLUSTER else ""
    )
    return (
        f"Nothing in this stack adds nodes: node group {pool.name} starts with {pool.nodes_at_rest} of at most "
        f"{pool.max_nodes} nodes, the most replicas ({when}) need {pool.nodes_at_peak}. Until then further pods stay "
        "pending: set the group's desired size by hand, or run an autoscaler of your own."
    )


def _from_zero(model: ModelPlan) -> str:
    deadline_s, ready_s = model.settings.limits.request_deadline_s, model.settings.autoscaling.load_time_s or 0
    return (
        f"{model.settings.name} rests at 0 replicas: a first request is given up after {deadline_s:g} s, a replica is "
        f"ready after about {ready_s:.0f} s. Callers have to retry for that long, or write min_replicas 1."
    )
