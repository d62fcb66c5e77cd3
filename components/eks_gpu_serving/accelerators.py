"""NVIDIA's device plugin, for operating systems that come without it: no plugin, no ``nvidia.com/gpu``, no pod."""

import re
from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from eks_gpu_serving.args import raise_problems, read_args
from eks_gpu_serving.device_plugin_values import device_plugin_values
from eks_gpu_serving.kubernetes_rules import DEVICE_PLUGIN_NAMESPACE
from eks_gpu_serving.tokens import token

_CHART = "nvidia-device-plugin"
_REPOSITORY = "https://nvidia.github.io/k8s-device-plugin"
_VERSION = "0.18.2"
_TIMEOUT_S = 600


@dataclass(frozen=True, kw_only=True)
class NvidiaDevicePluginArgs:
    """Arguments of :class:`NvidiaDevicePlugin`."""

    chart_version: str | None = None
    """Version of the chart, exactly. Default 0.18.2."""
    namespace: str | None = None
    """Namespace, made with the release. Default nvidia-device-plugin."""


class NvidiaDevicePlugin(pulumi.ComponentResource):
    """The daemon set that advertises ``nvidia.com/gpu`` on AL2023 nodes of GpuNodeGroup.

    Creates:

    - a Helm release of the pinned chart, with its namespace.

    Does not:

    - run on Bottlerocket nodes, whose image has the plugin;
    - install drivers or the container toolkit: the NVIDIA images of EKS have both;
    - share or partition GPUs.

    Takes its Kubernetes provider from ``opts``.
    """

    release_name: pulumi.Output[str]
    """Name of the Helm release."""

    def __init__(self, name: str, args: NvidiaDevicePluginArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(token("NvidiaDevicePlugin"), name, {}, opts)
        args = read_args(NvidiaDevicePluginArgs, args, f"NvidiaDevicePlugin {name!r}")
        version = args.chart_version or _VERSION
        raise_problems(f"NvidiaDevicePlugin {name!r}", _problems(version))

        self.release = k8s.helm.v3.Release(
            f"{name}-release",
            chart=_CHART,
            version=version,
            repository_opts=k8s.helm.v3.RepositoryOptsArgs(repo=_REPOSITORY),
            namespace=args.namespace or DEVICE_PLUGIN_NAMESPACE,
            create_namespace=True,
            values=device_plugin_values(),
            timeout=_TIMEOUT_S,
            cleanup_on_fail=True,
            opts=pulumi.ResourceOptions(parent=self),
        )

        self.release_name = self.release.name.apply(str)
        self.register_outputs({"release_name": self.release_name})


def _problems(version: str) -> list[tuple[str, str]]:
    if re.fullmatch(r"0\.(1[7-9])\.\d+", version):
        return []
    return [("chart_version", f"got {version!r}, must be one version of 0.17 to 0.19, such as {_VERSION}")]
