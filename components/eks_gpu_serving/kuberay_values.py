"""Values of the kuberay-operator chart and the addresses of its custom resource definitions."""

from typing import Any

from eks_gpu_serving.settings import KubeRaySettings

CHART = "kuberay-operator"
CHART_REPOSITORY = "https://ray-project.github.io/kuberay-helm/"
# The files of the tag that the chart was released from; Helm itself never upgrades what lies in a chart's crds/.
CRD_SOURCE = "https://raw.githubusercontent.com/ray-project/kuberay/v{version}/ray-operator/config/crd/bases"
CRD_FILES = ("ray.io_rayclusters.yaml", "ray.io_rayjobs.yaml", "ray.io_rayservices.yaml", "ray.io_raycronjobs.yaml")

# The chart's default is a limit of 100m and 512Mi without a request; 512Mi is for some 500 Ray pods (its values.yaml).
_CPU = "500m"
_MEMORY = "512Mi"


def kuberay_values(kuberay: KubeRaySettings, watch_namespace: str) -> dict[str, Any]:
    """The operator, in its own namespace, for RayServices in ``watch_namespace``. It tolerates no GPU taint."""
    amounts = {"cpu": _CPU, "memory": _MEMORY}
    return {
        "image": {"tag": f"v{kuberay.chart_version}"},
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "watchNamespace": [watch_namespace],
        # Cluster-wide rights are what the operator needs to watch a namespace other than its own.
        "singleNamespaceInstall": False,
        "podSecurityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }


def crd_files(kuberay: KubeRaySettings) -> list[str]:
    """Addresses, or paths below ``crd_source``, of the custom resource definitions of the chart's version."""
    source = (kuberay.crd_source or CRD_SOURCE.format(version=kuberay.chart_version)).rstrip("/")
    return [f"{source}/{name}" for name in CRD_FILES]
