"""How long things take and how long they may take; one place for every number of seconds."""

import math
from collections.abc import Sequence

from eks_gpu_serving.planning.capacity import ModelPlan, Timeouts
from eks_gpu_serving.planning.instances import InstanceType
from eks_gpu_serving.planning.models import is_download, prefetched_variants
from ray_model_serving.contract.deployments import DRAIN_MARGIN_S
from ray_model_serving.contract.settings import ModelSettings

# One run on g6e.2xlarge, published by awslabs/data-on-eks (ray-batch-inference.md): node claim to ready 53 s, GPU
# registered 36 s, 11.6 GB image pulled 121 s, container started 53 s.
_NODE_READY_S = 53 + 36
_IMAGE_PULL_S = 121
_CONTAINER_START_S = 53
_REPLICA_START_S = 16
_NEW_NODE_S = _NODE_READY_S + _IMAGE_PULL_S + _CONTAINER_START_S + _REPLICA_START_S
# Amazon S3 delivers 85 to 90 MB/s per connection (S3 user guide, performance design patterns).
_S3_CONNECTION_BYTES_PER_S = 85e6
_MAX_CONNECTIONS = 64
# A proxy that drains goes on for at least so long (Ray Serve 2.60, RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S).
_PROXY_DRAIN_S = 30.0
# What a load may take over what it is expected to take, before it counts as stuck.
_DEADLINE_FACTOR = 5
_DEADLINE_FLOOR_S = 300
# Delays and deadlines of the application are a day at most, and some are twice the time until a replica is ready.
MAX_READY_S = 43_200


def fetch_seconds(model: ModelSettings, instance: InstanceType, rate_cap_bytes_per_s: float | None = None) -> float:
    """Seconds to download a model, with the variants that are fetched ahead, once to a node: at its network baseline,
    S3's rate or the cap, whichever is least; 0 for one that is no download."""
    snapshots = is_download(model.uri) + len(prefetched_variants(model))
    rates = [_network_bytes_per_s(instance), _MAX_CONNECTIONS * _S3_CONNECTION_BYTES_PER_S]
    rates += [rate_cap_bytes_per_s] if rate_cap_bytes_per_s else []
    return snapshots * model.weights_bytes / min(rates)


def ready_seconds(models: Sequence[ModelSettings], instance: InstanceType, rate_cap_bytes_per_s: float | None) -> float:
    """Seconds until a replica on a node that does not exist yet is ready. One download at a time on a node, and the
    prefetch before Ray starts: every model of the pool is waited for."""
    fetch_s = sum(fetch_seconds(model, instance, rate_cap_bytes_per_s) for model in models)
    return _NEW_NODE_S + fetch_s


def connections_for(instance: InstanceType) -> int:
    """Connections that fill the node's network at S3's rate per connection, between 8 and 64."""
    return max(8, min(_MAX_CONNECTIONS, math.ceil(_network_bytes_per_s(instance) / _S3_CONNECTION_BYTES_PER_S)))


def _network_bytes_per_s(instance: InstanceType) -> float:
    return instance.network_baseline_mbps * 1e6 / 8


def plan_timeouts(models: Sequence[ModelPlan]) -> Timeouts:
    """Deadlines for the slowest model and node of the stack."""
    # One download at a time on a node: the last model of a pool waits for all others.
    by_pool: dict[str, float] = {}
    for model in models:
        by_pool[model.pool] = by_pool.get(model.pool, 0.0) + model.fetch_s
    slowest_s = max(by_pool.values())
    load_deadline_s = float(math.ceil(max(_DEADLINE_FLOOR_S, _DEADLINE_FACTOR * slowest_s)))
    load_deadline_s = min(load_deadline_s, 2.0 * MAX_READY_S)
    request_s = max(model.settings.limits.request_deadline_s for model in models)
    return Timeouts(
        load_deadline_s=load_deadline_s,
        prefetch_deadline_s=load_deadline_s,
        cold_ready_s=_NEW_NODE_S + slowest_s,
        warm_ready_s=_REPLICA_START_S,
        request_s=request_s,
        proxy_request_s=request_s + DRAIN_MARGIN_S / 2,
        termination_grace_s=math.ceil(max(request_s + DRAIN_MARGIN_S, _PROXY_DRAIN_S) + DRAIN_MARGIN_S),
    )
