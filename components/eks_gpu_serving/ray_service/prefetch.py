"""Fetches models to the node's cache before Ray starts, so that the download overlaps with the start of the head.

A prefetch that fails must not keep the pod from starting: the replica fetches for itself, with its own retries and a
state that callers and alerts can see. An init container that fails would only restart, unseen, for ever.
"""

import json
from collections.abc import Sequence
from typing import Any

from eks_gpu_serving.planning.capacity import CapacityPlan, PoolPlan
from eks_gpu_serving.planning.models import is_download, prefetched_variants
from eks_gpu_serving.ray_service.cache import cache_mount
from eks_gpu_serving.ray_service.containers import (
    environment,
    resources,
    root_for_ownership,
    serving_user,
)
from eks_gpu_serving.ray_service.names import PREFETCH_CONFIG_MAP
from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.memory import MIB
from ray_model_serving.contract.paths import (
    CACHE_MOUNT_PATH,
    PREFETCH_LIST_DIRECTORY,
    PREFETCH_LIST_FILE,
    SERVING_GID,
    SERVING_UID,
)
from ray_model_serving.contract.settings import ModelSettings, ServingSettings, Variant

_LIST_VOLUME = "prefetch-list"
_DEADLINE_FILE = "deadline_s"
# A shell and chown.
_PREPARE_CPU = "100m"
_PREPARE_MEMORY_BYTES = 64 * MIB


def prefetch_lists(plan: CapacityPlan) -> dict[str, str]:
    """Data of the ConfigMap: for each pool, what its nodes fetch, as the JSON that ``ray-model fetch --list`` reads,
    and for how many seconds at most. In the pod's command that number would make KubeRay build a second cluster for
    one variant more.

    Models before variants: a replica without a variant serves, one without its model does not.
    """
    lists = {
        _list_key(pool): _prefetch_list(
            [model.settings for model in plan.models if model.pool == pool.name], plan.serving
        )
        for pool in plan.pools
    }
    return lists | {_deadline_key(pool): f"{plan.timeouts.prefetch_deadline_s:.0f}\n" for pool in plan.pools}


def prefetch_volume(pool: PoolPlan) -> dict[str, Any]:
    """The pool's list and deadline, under the names that the container knows."""
    paths = {_list_key(pool): PREFETCH_LIST_FILE, _deadline_key(pool): _DEADLINE_FILE}
    items = [{"key": key, "path": path} for key, path in paths.items()]
    return {"name": _LIST_VOLUME, "configMap": {"name": PREFETCH_CONFIG_MAP, "items": items}}


def init_containers(settings: StackSettings, pool: PoolPlan) -> list[dict[str, Any]]:
    """In this order: hand the cache directory to the serving user, then fetch."""
    return [_prepare_cache(settings), _prefetch(settings, pool)]


def _list_key(pool: PoolPlan) -> str:
    return f"{pool.name}.json"


def _deadline_key(pool: PoolPlan) -> str:
    return f"{pool.name}.deadline"


def _prefetch_list(models: Sequence[ModelSettings], serving: ServingSettings) -> str:
    entries = [_entry(model, model) for model in models if is_download(model.uri)]
    entries += [_entry(model, variant) for model in models for variant in prefetched_variants(model)]
    shared = {
        "cache_budget_bytes": serving.cache_budget_bytes,
        "connections": serving.connections,
        "rate_cap_bytes_per_s": serving.rate_cap_bytes_per_s,
    }
    document = {"models": entries, **{key: value for key, value in shared.items() if value is not None}}
    return json.dumps(document, indent=2) + "\n"


def _entry(model: ModelSettings, weights: ModelSettings | Variant) -> dict[str, object]:
    return {
        "uri": weights.uri,
        "include": list(model.include),
        "exclude": list(model.exclude),
        "snapshot_id": weights.snapshot_id,
    }


def _prepare_cache(settings: StackSettings) -> dict[str, Any]:
    """fsGroup does not apply to hostPath, so root hands over the directory; only itself, never what lies in it."""
    path = CACHE_MOUNT_PATH
    return {
        "name": "prepare-cache",
        "image": settings.ray.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", f"chown {SERVING_UID}:{SERVING_GID} {path} && chmod 0775 {path}"],
        "resources": resources(_PREPARE_CPU, _PREPARE_MEMORY_BYTES),
        "securityContext": root_for_ownership(),
        "volumeMounts": [cache_mount()],
    }


def _prefetch(settings: StackSettings, pool: PoolPlan) -> dict[str, Any]:
    fetch = f"ray-model fetch --list {PREFETCH_LIST_DIRECTORY}/{PREFETCH_LIST_FILE} --cache-dir {CACHE_MOUNT_PATH}"
    deadline = f"$(cat {PREFETCH_LIST_DIRECTORY}/{_DEADLINE_FILE})"
    otherwise = "prefetch ended with status $? (124: out of time); the replica fetches for itself"
    return {
        "name": "prefetch",
        "image": settings.ray.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", f'timeout "{deadline}" {fetch} || echo "{otherwise}"'],
        "env": environment(settings),
        # As much as the Ray container after it: the pod's request does not grow, and its class stays Guaranteed.
        "resources": resources(str(pool.cpus_per_pod), pool.pod.limit_bytes),
        "securityContext": serving_user(),
        "volumeMounts": [
            cache_mount(),
            {"name": _LIST_VOLUME, "mountPath": PREFETCH_LIST_DIRECTORY, "readOnly": True},
        ],
    }
