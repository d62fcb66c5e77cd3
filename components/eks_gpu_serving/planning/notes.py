"""What a plan can't do by itself and somebody has to, in sentences."""

from collections.abc import Iterable

from eks_gpu_serving.planning.capacity import PoolPlan
from eks_gpu_serving.settings import Upgrade


def plan_notes(pools: Iterable[PoolPlan], upgrade: Upgrade) -> tuple[str, ...]:
    """One note for each pool that needs more nodes than it starts with."""
    return tuple(_growth(pool, upgrade) for pool in pools if pool.nodes_at_peak > pool.nodes_at_rest)


def _growth(pool: PoolPlan, upgrade: Upgrade) -> str:
    when = f"{pool.max_pods} worker pods" + (
        ", twice as many during an upgrade" if upgrade is Upgrade.NEW_CLUSTER else ""
    )
    return (
        f"Nothing in this stack adds nodes: node group {pool.name} starts with {pool.nodes_at_rest} of at most "
        f"{pool.max_nodes} nodes, the most replicas ({when}) need {pool.nodes_at_peak}. Until then further pods stay "
        "pending: set the group's desired size by hand, or run an autoscaler of your own."
    )
