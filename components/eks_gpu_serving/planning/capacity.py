"""The result of planning: every size, bound and path that documents and components are made from."""

from dataclasses import dataclass

from eks_gpu_serving.nodes.names import OperatingSystem
from eks_gpu_serving.planning.instances import InstanceType
from ray_model_serving.contract.memory import PodMemory
from ray_model_serving.contract.settings import ModelSettings, ServingSettings


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """One model as it is deployed."""

    settings: ModelSettings
    pool: str
    actor_memory_bytes: int
    replicas_per_pod: int
    device_bytes: int
    """Device memory of one replica: weights, activations and its loaded variants; 0 on cpu."""
    resident_variant_bytes: int
    """Most bytes of its loaded variants, on the device or, on cpu, in ``actor_memory_bytes``."""
    prefetched_variants: tuple[str, ...]
    """Names of the variants that a node fetches with the model, before a replica starts."""
    fetch_s: float
    """Expected seconds to download the model and these variants once to a node of its pool."""


@dataclass(frozen=True, kw_only=True)
class PoolPlan:
    """One GPU node group and the Ray worker group on it."""

    name: str
    instance: InstanceType
    operating_system: OperatingSystem
    min_nodes: int
    max_nodes: int
    nodes_at_rest: int
    """Nodes that the least replicas need: what the group starts with."""
    nodes_at_peak: int
    """Nodes that the most replicas need, and during an upgrade those of the second cluster; at most ``max_nodes``."""
    pods_per_node: int
    gpus_per_pod: int
    cpus_per_pod: int
    pod: PodMemory
    min_pods: int
    max_pods: int
    """Bounds of the Ray worker group; the node group has room for twice as many where an upgrade runs two clusters."""
    cache_budget_bytes: int
    disk_bytes: int
    usd_per_hour_min: float | None
    usd_per_hour_max: float | None


@dataclass(frozen=True, kw_only=True)
class HeadPlan:
    """The Ray head pod: no replica runs on it. KubeRay puts the autoscaler beside it, in the same pod."""

    cpus: int
    memory_bytes: int
    autoscaler_cpu_m: int
    autoscaler_memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Seconds that depend on how long a load takes, computed once."""

    load_deadline_s: float
    prefetch_deadline_s: float
    cold_ready_s: float
    """A replica on a node that does not exist yet: node, image, fetch, load."""
    warm_ready_s: float
    """A replica on a node that has the snapshot."""
    request_s: float
    """The longest deadline of a request. What follows is longer, one after the other."""
    proxy_request_s: float
    """The proxy gives up a request after its replica did, so that the replica's answer arrives."""
    termination_grace_s: int
    """Longer than a request, the drain of its replica and the drain of a proxy."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """USD per hour, on demand in us-east-1: GPU nodes, system nodes and the EKS control plane. None: no price known."""

    min_usd_per_hour: float | None
    max_usd_per_hour: float | None


@dataclass(frozen=True, kw_only=True)
class CapacityPlan:
    """Proof that the stack fits, in numbers."""

    pools: tuple[PoolPlan, ...]
    models: tuple[ModelPlan, ...]
    head: HeadPlan
    serving: ServingSettings
    timeouts: Timeouts
    cost: Cost
    notes: tuple[str, ...]
    """What whoever deploys the plan has to do besides, in sentences."""
