"""What the containers of all Ray pods have in common: resources, user and environment."""

from typing import Any

from eks_gpu_serving.nodes.names import GPU_TAINT
from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.memory import RAY_KILL_THRESHOLD
from ray_model_serving.contract.paths import SERVING_GID, SERVING_UID


def resources(cpu: str, memory_bytes: int, gpus: int = 0) -> dict[str, Any]:
    """Requests equal to limits. KubeRay reads only limits: without one, Ray takes the whole node's memory as its."""
    amounts = {"cpu": cpu, "memory": str(memory_bytes)}
    if gpus:
        amounts[GPU_TAINT] = str(gpus)
    return {"requests": dict(amounts), "limits": dict(amounts)}


def environment(settings: StackSettings) -> list[dict[str, str]]:
    """Environment of every container that runs Ray or ``ray-model``."""
    values = {
        # boto3 reads the second, everything else of AWS the first.
        "AWS_REGION": settings.region,
        "AWS_DEFAULT_REGION": settings.region,
        # Writable for any user in any image.
        "HOME": "/tmp",  # noqa: S108 (a container's own)
        "RAY_memory_usage_threshold": f"{RAY_KILL_THRESHOLD:g}",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return [{"name": name, "value": value} for name, value in values.items()]


def serving_user() -> dict[str, Any]:
    """Security context of every container but the one that prepares the cache."""
    return {
        "runAsNonRoot": True,
        "runAsUser": SERVING_UID,
        "runAsGroup": SERVING_GID,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def root_for_ownership() -> dict[str, Any]:
    """Root with two capabilities: change the owner of a file, and the mode of one that is somebody else's."""
    return {
        **serving_user(),
        "runAsNonRoot": False,
        "runAsUser": 0,
        "runAsGroup": 0,
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "FOWNER"]},
    }
