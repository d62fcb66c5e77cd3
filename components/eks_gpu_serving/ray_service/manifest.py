"""The RayService object, ``ray.io/v1``. Every size and bound comes from the plan; nothing is computed here."""

import math
from typing import Any

from eks_gpu_serving.planning.capacity import CapacityPlan, PoolPlan
from eks_gpu_serving.ray_service.containers import resources, serving_user
from eks_gpu_serving.ray_service.names import labels
from eks_gpu_serving.ray_service.pods import head_template, worker_template
from eks_gpu_serving.settings import StackSettings, Upgrade
from ray_model_serving.contract.memory import PodMemory, split_pod

API_VERSION = "ray.io/v1"
KIND = "RayService"

_UPGRADES = {Upgrade.NEW_CLUSTER: "NewCluster", Upgrade.NONE: "None"}


def ray_service(settings: StackSettings, plan: CapacityPlan, serve_config: object) -> dict[str, Any]:
    """The whole object. ``serve_config`` is text, or an Output of it: the only part that may need the cloud."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": ray_service_metadata(settings, plan),
        "spec": ray_service_spec(settings, plan, serve_config),
    }


def ray_service_metadata(settings: StackSettings, plan: CapacityPlan) -> dict[str, Any]:
    """Name and annotations. The annotations tell Pulumi how to apply the object, and mean nothing to others."""
    annotations = {
        "pulumi.com/waitFor": "condition=Ready",
        "pulumi.com/timeoutSeconds": str(math.ceil(plan.timeouts.cold_ready_s + plan.timeouts.load_deadline_s)),
        # The operator takes ownership of workerGroupSpecs when it adds its finalizer; a later change of ours would end
        # in a conflict.
        "pulumi.com/patchForce": "true",
    }
    return {
        "name": settings.service_name,
        "namespace": settings.ray.namespace,
        "labels": labels(settings),
        "annotations": annotations,
    }


def ray_service_spec(settings: StackSettings, plan: CapacityPlan, serve_config: object) -> dict[str, Any]:
    """The specification. A change of ``rayClusterConfig`` other than of bounds makes KubeRay build a second cluster."""
    # Without the head nobody hears the first request where no worker rests; with it, its restarts are seen as 502.
    workers_rest = any(model.settings.min_replicas for model in plan.models)
    return {
        "upgradeStrategy": {"type": _UPGRADES[settings.ray.upgrade]},
        "excludeHeadPodFromServeSvc": workers_rest,
        "serveConfigV2": serve_config,
        "rayClusterConfig": _cluster(settings, plan),
    }


def _cluster(settings: StackSettings, plan: CapacityPlan) -> dict[str, Any]:
    return {
        "rayVersion": settings.ray.version,
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {
            # Written down: left out, the version follows Ray's and KubeRay's defaults, which differ.
            "version": "v2",
            "imagePullPolicy": "IfNotPresent",
            "resources": resources(f"{plan.head.autoscaler_cpu_m}m", plan.head.autoscaler_memory_bytes),
            "securityContext": serving_user(),
        },
        "headGroupSpec": _head(settings, plan),
        "workerGroupSpecs": [_worker_group(settings, plan, pool) for pool in plan.pools],
    }


def _head(settings: StackSettings, plan: CapacityPlan) -> dict[str, Any]:
    memory = split_pod(plan.head.memory_bytes, actors_bytes=0)
    params = {
        "dashboard-host": "0.0.0.0",  # noqa: S104 (the pod's own network)
        # Nothing to hand out: replicas reserve CPU and memory, so none of them lands beside the Serve controller.
        "num-cpus": "0",
        "num-gpus": "0",
        **_memory_params(memory),
    }
    return {"rayStartParams": params, "template": head_template(settings, plan, memory)}


def _worker_group(settings: StackSettings, plan: CapacityPlan, pool: PoolPlan) -> dict[str, Any]:
    params = {
        "num-cpus": str(pool.cpus_per_pod),
        "num-gpus": str(pool.gpus_per_pod),
        **_memory_params(pool.pod),
    }
    return {
        "groupName": pool.name,
        # No replicas: that number is the autoscaler's, and every update of ours would put the old one back. The
        # operator starts with the minimum.
        "minReplicas": pool.min_pods,
        "maxReplicas": pool.max_pods,
        "rayStartParams": params,
        "template": worker_template(settings, plan, pool),
    }


def _memory_params(memory: PodMemory) -> dict[str, str]:
    """Both at once: KubeRay alone would promise actors the whole limit, and the object store on top of it."""
    return {"memory": str(memory.actors_bytes), "object-store-memory": str(memory.object_store_bytes)}
