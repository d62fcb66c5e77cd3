"""Pod templates of the Ray head and of the worker group of each pool."""

from typing import Any

from eks_gpu_serving.nodes.names import GPU_TAINT, POOL_LABEL
from eks_gpu_serving.planning.capacity import CapacityPlan, PoolPlan
from eks_gpu_serving.ray_service.cache import cache_mount, cache_volume
from eks_gpu_serving.ray_service.containers import environment, resources, serving_user
from eks_gpu_serving.ray_service.names import head_account, labels, worker_account
from eks_gpu_serving.ray_service.prefetch import init_containers, prefetch_volume
from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.memory import PodMemory
from ray_model_serving.contract.paths import SERVE_PORT, SERVING_GID

# Ports of `ray start` and of Ray's metrics agent, by the names that KubeRay looks for (ray-operator constant.go).
_HEAD_PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001, "serve": SERVE_PORT, "metrics": 8080}
_WORKER_PORTS = {"serve": SERVE_PORT, "metrics": 8080}

_SHM_VOLUME = "shared-memory"

# Neither the cluster autoscaler nor Karpenter may move a pod whose model takes minutes to load.
_STAY = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}


def head_template(settings: StackSettings, plan: CapacityPlan, memory: PodMemory) -> dict[str, Any]:
    """The head. It tolerates no GPU taint, so it lands on system nodes; its autoscaler needs Kubernetes rights."""
    container = {
        **_ray_container(settings, "ray-head", _HEAD_PORTS),
        "resources": resources(str(plan.head.cpus), memory.limit_bytes),
        "volumeMounts": [_shm_mount()],
    }
    spec = {
        **_pod(plan, head_account(settings)),
        "containers": [container],
        "volumes": [_shm_volume(memory)],
    }
    return {"metadata": _metadata(settings), "spec": spec}


def worker_template(settings: StackSettings, plan: CapacityPlan, pool: PoolPlan) -> dict[str, Any]:
    """A worker: prefetch first, then Ray, on the nodes of its pool."""
    container = {
        **_ray_container(settings, "ray-worker", _WORKER_PORTS),
        "resources": resources(str(pool.cpus_per_pod), pool.pod.limit_bytes, pool.gpus_per_pod),
        "volumeMounts": [_shm_mount(), cache_mount()],
    }
    spec = {
        **_pod(plan, worker_account(settings)),
        "automountServiceAccountToken": False,
        "nodeSelector": {POOL_LABEL: pool.name},
        "tolerations": [{"key": GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}],
        "initContainers": init_containers(settings, pool),
        "containers": [container],
        "volumes": [_shm_volume(pool.pod), cache_volume(pool), prefetch_volume(pool)],
    }
    return {"metadata": _metadata(settings), "spec": spec}


def _metadata(settings: StackSettings) -> dict[str, Any]:
    return {"labels": labels(settings), "annotations": dict(_STAY)}


def _pod(plan: CapacityPlan, account: str) -> dict[str, Any]:
    return {
        "serviceAccountName": account,
        # Autoscaler v2 replaces pods and accepts no other policy.
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": plan.timeouts.termination_grace_s,
        "enableServiceLinks": False,
        # For emptyDir and token volumes; hostPath ignores it.
        "securityContext": {"fsGroup": SERVING_GID},
    }


def _ray_container(settings: StackSettings, name: str, ports: dict[str, int]) -> dict[str, Any]:
    return {
        "name": name,
        "image": settings.ray.image,
        "imagePullPolicy": "IfNotPresent",
        # No NVIDIA_ variable: the device plugin sets them, and one of ours would give a pod all GPUs of the node.
        "env": environment(settings),
        "ports": [{"name": port_name, "containerPort": port} for port_name, port in ports.items()],
        "securityContext": serving_user(),
    }


def _shm_mount() -> dict[str, Any]:
    # Mounted by us, or KubeRay would mount one as large as the whole memory limit.
    return {"name": _SHM_VOLUME, "mountPath": "/dev/shm"}  # noqa: S108 (a container's own)


def _shm_volume(memory: PodMemory) -> dict[str, Any]:
    return {"name": _SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": str(memory.shm_bytes)}}
