"""How long things take and how long they may take; one place for every number of seconds."""

import math
from collections.abc import Sequence

from eks_gpu_serving.planning.capacity import ModelPlan, Timeouts
from eks_gpu_serving.planning.instances import InstanceType
from eks_gpu_serving.planning.models import is_download
from ray_model_serving.contract.deployments import DRAIN_MARGIN_S
from ray_model_serving.contract.settings import ModelSettings

# One run on g6e.2xlarge, published by awslabs/data-on-eks (ray-batch-inference.md): node claim to ready 53 s, GPU
# registered 36 s, 11.6 GB image pulled 121 s, container started 53 s.
_NODE_READY_S = 53 + 36
_IMAGE_PULL_S = 121
_CONTAINER_START_S = 53
_REPLICA_START_S = 16
# Amazon S3 delivers 85 to 90 MB/s per connection (S3 user guide, performance design patterns).
_S3_CONNECTION_BYTES_PER_S = 85e6
_MAX_CONNECTIONS = 64
# What a load may take over what it is expected to take, before it counts as stuck.
_DEADLINE_FACTOR = 5
_DEADLINE_FLOOR_S = 300


def fetch_seconds(model: ModelSettings, instance: InstanceType) -> float:
    """Seconds to download a model once to a node, at its network baseline; 0 for one that is no download."""
    if not is_download(model):
        return 0.0
    network_bytes_per_s = instance.network_baseline_mbps * 1e6 / 8
    return model.weights_bytes / min(network_bytes_per_s, _MAX_CONNECTIONS * _S3_CONNECTION_BYTES_PER_S)


def connections_for(instance: InstanceType) -> int:
    """Connections that fill the node's network at S3's rate per connection, between 8 and 64."""
    network_bytes_per_s = instance.network_baseline_mbps * 1e6 / 8
    return max(8, min(_MAX_CONNECTIONS, math.ceil(network_bytes_per_s / _S3_CONNECTION_BYTES_PER_S)))


def plan_timeouts(models: Sequence[ModelPlan]) -> Timeouts:
    """Deadlines for the slowest model and node of the stack."""
    # One download at a time on a node: the last model of a pool waits for all others.
    by_pool: dict[str, float] = {}
    for model in models:
        by_pool[model.pool] = by_pool.get(model.pool, 0.0) + model.fetch_s
    slowest_s = max(by_pool.values())
    load_deadline_s = float(math.ceil(max(_DEADLINE_FLOOR_S, _DEADLINE_FACTOR * slowest_s)))
    request_s = max(model.settings.limits.request_deadline_s for model in models)
    return Timeouts(
        load_deadline_s=load_deadline_s,
        prefetch_deadline_s=load_deadline_s,
        cold_ready_s=_NODE_READY_S + _IMAGE_PULL_S + _CONTAINER_START_S + _REPLICA_START_S + slowest_s,
        warm_ready_s=_REPLICA_START_S,
        request_s=request_s,
        termination_grace_s=math.ceil(request_s + 2 * DRAIN_MARGIN_S),
    )
