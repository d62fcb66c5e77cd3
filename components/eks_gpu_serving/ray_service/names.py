"""Names that the RayService and what belongs to it share."""

from eks_gpu_serving.settings import StackSettings

# Constant, unlike what it holds: a name that changed with the content would change the RayCluster specification, and
# KubeRay would build a second cluster for every model version.
PREFETCH_CONFIG_MAP = "ray-model-prefetch"


def head_account(settings: StackSettings) -> str:
    """Service account of the head. KubeRay lets it patch pods, for the autoscaler; it has no AWS identity."""
    return f"{settings.service_name}-head"


def worker_account(settings: StackSettings) -> str:
    """Service account of the workers: the AWS identity that reads models, and no Kubernetes rights."""
    return f"{settings.service_name}-worker"


def labels(settings: StackSettings) -> dict[str, str]:
    """Labels of every object and pod of the service."""
    return {
        "app.kubernetes.io/name": settings.service_name,
        "app.kubernetes.io/part-of": settings.name,
        "app.kubernetes.io/managed-by": "eks-gpu-serving",
    }
