"""The node's model cache as pods see it: one volume, mounted at one path in every container."""

from typing import Any

from eks_gpu_serving.nodes.operating_systems import host_cache_mount
from eks_gpu_serving.planning.capacity import PoolPlan
from ray_model_serving.contract.paths import CACHE_MOUNT_PATH

_VOLUME = "model-cache"
# Directory below the mount of the instance store, which kubelet and containerd share: pods see it and nothing else.
_SUB_PATH = "model-cache"


def cache_volume(pool: PoolPlan) -> dict[str, Any]:
    """The mount of the instance store itself, type Directory: on a node without one the pod does not start.

    ``DirectoryOrCreate`` on the directory below would silently put the cache on the root volume.
    """
    path = host_cache_mount(pool.operating_system)
    return {"name": _VOLUME, "hostPath": {"path": path, "type": "Directory"}}


def cache_mount() -> dict[str, Any]:
    """The kubelet makes the directory, inside the mount, when the first pod of a node starts."""
    return {"name": _VOLUME, "mountPath": CACHE_MOUNT_PATH, "subPath": _SUB_PATH}
