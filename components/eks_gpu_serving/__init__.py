"""A GPU serving stack on EKS as Pulumi components.

    from eks_gpu_serving import GpuServingStack, GpuServingStackArgs

The names below are imported when they are asked for: settings, planning and renderers are used where pulumi is not
installed, and importing one of their modules imports this package first.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eks_gpu_serving.accelerators import NvidiaDevicePlugin, NvidiaDevicePluginArgs
    from eks_gpu_serving.cluster import ServingCluster, ServingClusterArgs
    from eks_gpu_serving.identity import ModelAccessRole, ModelAccessRoleArgs
    from eks_gpu_serving.kuberay import KubeRayOperator, KubeRayOperatorArgs
    from eks_gpu_serving.nodes.gpu_node_group import GpuNodeGroup, GpuNodeGroupArgs
    from eks_gpu_serving.ray_service.ray_model_service import RayModelService, RayModelServiceArgs
    from eks_gpu_serving.stack import GpuServingStack
    from eks_gpu_serving.stack_args import GpuServingStackArgs

__all__ = [
    "GpuServingStack",
    "GpuServingStackArgs",
    "ServingCluster",
    "ServingClusterArgs",
    "GpuNodeGroup",
    "GpuNodeGroupArgs",
    "NvidiaDevicePlugin",
    "NvidiaDevicePluginArgs",
    "ModelAccessRole",
    "ModelAccessRoleArgs",
    "KubeRayOperator",
    "KubeRayOperatorArgs",
    "RayModelService",
    "RayModelServiceArgs",
]

_MODULES = {
    "GpuServingStack": "stack",
    "GpuServingStackArgs": "stack_args",
    "ServingCluster": "cluster",
    "GpuNodeGroup": "nodes.gpu_node_group",
    "NvidiaDevicePlugin": "accelerators",
    "ModelAccessRole": "identity",
    "KubeRayOperator": "kuberay",
    "RayModelService": "ray_service.ray_model_service",
}
COMPONENTS = tuple(name for name in __all__ if not name.endswith("Args"))


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name) or _MODULES[name.removesuffix("Args")]
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
