"""The Kubernetes objects around the RayService: namespace, service accounts and the prefetch list."""

from typing import Any

from eks_gpu_serving.planning.capacity import CapacityPlan
from eks_gpu_serving.ray_service.names import PREFETCH_CONFIG_MAP, head_account, labels, worker_account
from eks_gpu_serving.ray_service.prefetch import prefetch_lists
from eks_gpu_serving.settings import StackSettings

# The admission webhook of EKS (IRSA) gives pods of such an account a token for the role.
ROLE_ANNOTATION = "eks.amazonaws.com/role-arn"


def namespace(settings: StackSettings) -> dict[str, Any]:
    """The namespace of the RayService."""
    metadata = {"name": settings.ray.namespace, "labels": labels(settings)}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def head_service_account(settings: StackSettings) -> dict[str, Any]:
    """KubeRay binds the autoscaler's rights to it."""
    return _service_account(settings, head_account(settings), {})


def worker_service_account(settings: StackSettings, model_role_arn: object | None) -> dict[str, Any]:
    """The models' reader. ``model_role_arn`` is text, an Output of it, or None where no model is in S3."""
    annotations = {} if model_role_arn is None else {ROLE_ANNOTATION: model_role_arn}
    return _service_account(settings, worker_account(settings), annotations)


def prefetch_config_map(settings: StackSettings, plan: CapacityPlan) -> dict[str, Any]:
    """The prefetch lists, one key a pool."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(settings, PREFETCH_CONFIG_MAP),
        "data": prefetch_lists(plan),
    }


def _service_account(settings: StackSettings, name: str, annotations: dict[str, object]) -> dict[str, Any]:
    metadata = _metadata(settings, name)
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}


def _metadata(settings: StackSettings, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": settings.ray.namespace, "labels": labels(settings)}
