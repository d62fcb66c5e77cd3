"""User data of GPU nodes: pure text from plain values, with the instance store as one array under kubelet and cache."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from eks_gpu_serving.nodes.names import (
    GPU_PRESENT_LABEL,
    GPU_TAINT,
    OPERATING_SYSTEM_LABEL,
    POOL_LABEL,
    OperatingSystem,
)
from eks_gpu_serving.nodes.operating_systems import OPERATING_SYSTEMS, UserDataFormat, host_cache_mount

# Fixed, so that the same node group always renders to the same bytes: another text means another template version, and
# EKS then replaces every node of the group.
_BOUNDARY = "==eks-gpu-serving=="
_BOTTLEROCKET_BOUND = ("/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods")


@dataclass(frozen=True, kw_only=True)
class Taint:
    """A taint in Kubernetes' own words, such as ``NoSchedule``."""

    key: str
    value: str
    effect: str


# On every node of a pool.
POOL_TAINT = Taint(key=GPU_TAINT, value="true", effect="NoSchedule")


def pool_labels(pool: str, operating_system: OperatingSystem) -> dict[str, str]:
    """Labels of the nodes of a pool, which pods and the device plugin select them by."""
    return {POOL_LABEL: pool, OPERATING_SYSTEM_LABEL: operating_system.value, GPU_PRESENT_LABEL: "true"}


@dataclass(frozen=True, kw_only=True)
class ClusterJoin:
    """How a node finds its cluster. Needed with an image of one's own only: EKS merges it into the user data of its own
    images, and then also sets labels and taints."""

    name: str
    endpoint: str
    certificate_authority: str
    """Base64, as EKS returns it."""
    service_cidr: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    taints: tuple[Taint, ...] = ()


def render_user_data(operating_system: OperatingSystem, join: ClusterJoin | None = None) -> str:
    """The text that the image boots with, not yet base64.

    ``join`` is for images of one's own. Raises ``ValueError`` where its service CIDR is none (Bottlerocket only).
    """
    if OPERATING_SYSTEMS[operating_system].user_data_format is UserDataFormat.NODE_CONFIG:
        return _mime(_node_config(join))
    return _bottlerocket(host_cache_mount(operating_system), join)


def _node_config(join: ClusterJoin | None) -> dict[str, Any]:
    spec: dict[str, Any] = {"instance": {"localStorage": {"strategy": "RAID0"}}}
    if join is not None:
        spec["cluster"] = {
            "name": join.name,
            "apiServerEndpoint": join.endpoint,
            "certificateAuthority": join.certificate_authority,
            "cidr": join.service_cidr,
        }
        labels = ",".join(f"{key}={value}" for key, value in sorted(join.labels.items()))
        taints = ",".join(f"{taint.key}={taint.value}:{taint.effect}" for taint in join.taints)
        flags = [f"--node-labels={labels}"] * bool(labels) + [f"--register-with-taints={taints}"] * bool(taints)
        spec["kubelet"] = {"flags": flags}
    return {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}


def _mime(document: dict[str, Any]) -> str:
    # EKS merges its own part into this message, so it has to be multipart with one part.
    lines = (
        "MIME-Version: 1.0",
        f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"',
        "",
        f"--{_BOUNDARY}",
        "Content-Type: application/node.eks.aws",
        "",
        yaml.safe_dump(document, sort_keys=False, width=10_000).rstrip(),
        "",
        f"--{_BOUNDARY}--",
        "",
    )
    return "\n".join(lines)


def _bottlerocket(cache_path: str, join: ClusterJoin | None) -> str:
    bound = ", ".join(_toml(path) for path in (*_BOTTLEROCKET_BOUND, cache_path))
    lines: list[str] = []
    if join is not None:
        lines += _bottlerocket_join(join)
    lines += [
        "[settings.bootstrap-commands.10-instance-store]",
        "commands = [",
        '    ["apiclient", "ephemeral-storage", "init"],',
        f'    ["apiclient", "ephemeral-storage", "bind", "--dirs", {bound}],',
        "]",
        "essential = true",
        'mode = "always"',
        "",
    ]
    return "\n".join(lines)


def _bottlerocket_join(join: ClusterJoin) -> list[str]:
    lines = [
        "[settings.kubernetes]",
        f"cluster-name = {_toml(join.name)}",
        f"api-server = {_toml(join.endpoint)}",
        f"cluster-certificate = {_toml(join.certificate_authority)}",
        f"cluster-dns-ip = {_toml(cluster_dns_ip(join.service_cidr))}",
        "",
    ]
    if join.labels:
        lines += ["[settings.kubernetes.node-labels]"]
        lines += [f"{_toml(key)} = {_toml(value)}" for key, value in sorted(join.labels.items())] + [""]
    if join.taints:
        lines += ["[settings.kubernetes.node-taints]"]
        lines += [f"{_toml(taint.key)} = [{_toml(f'{taint.value}:{taint.effect}')}]" for taint in join.taints] + [""]
    return lines


def cluster_dns_ip(service_cidr: str) -> str:
    """The address of cluster DNS, the tenth of the service range (EKS user guide, ``serviceIpv4Cidr``).

    Text that stands for a range, such as a placeholder of a rendered document, comes back as text about it.
    """
    if service_cidr.startswith("<"):
        return f"<tenth address of {service_cidr[1:]}"
    return str(ipaddress.ip_network(service_cidr)[10])


def _toml(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
