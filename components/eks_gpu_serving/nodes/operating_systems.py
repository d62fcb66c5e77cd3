"""One table: what differs between the operating systems of GPU nodes. Behaviour reads it instead of branching."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from eks_gpu_serving.nodes.names import OperatingSystem
from eks_gpu_serving.planning.instances import InstanceType


class UserDataFormat(str, Enum):
    """What the image expects to be booted with. Anything else boots a node that never joins."""

    NODE_CONFIG = "MIME multipart with a NodeConfig"
    TOML = "TOML settings"


@dataclass(frozen=True, kw_only=True)
class OperatingSystemFacts:
    """How nodes of one operating system are booted and where their instance store appears."""

    user_data_format: UserDataFormat
    root_device: str
    """Device name of the volume that the system boots from."""
    data_device: str
    """Device name of the volume with images, logs and emptyDir volumes; the root device where there is only one."""
    cache_host_path: str
    """Directory on the instance store that pods may mount. It exists only where an instance store was mounted."""
    ami_types: Mapping[str, tuple[str, ...]]
    """AMI types with an NVIDIA driver per architecture, the default first."""
    brings_device_plugin: bool
    """Whether the image advertises ``nvidia.com/gpu`` without anything installed in the cluster."""


# AMI types: EKS API, AMITypes (botocore 1.43.11).
# Device plugin: EKS user guide, "EKS optimized accelerated AMIs" (2026).
OPERATING_SYSTEMS: Mapping[OperatingSystem, OperatingSystemFacts] = {
    # awslabs/amazon-eks-ami, nodeadm/doc/api.md and templates/al2023/runtime/bin/setup-local-disks (2026-07-23): RAID0
    # is mounted at <mountPath>/0 and kubelet, containerd and pod logs are bound to it; without an instance store the
    # script leaves with 0 and the path does not exist.
    OperatingSystem.AL2023: OperatingSystemFacts(
        user_data_format=UserDataFormat.NODE_CONFIG,
        root_device="/dev/xvda",
        data_device="/dev/xvda",
        cache_host_path="/mnt/k8s-disks/0",
        ami_types={"amd64": ("AL2023_x86_64_NVIDIA",), "arm64": ("AL2023_ARM_64_NVIDIA",)},
        brings_device_plugin=False,
    ),
    # bottlerocket.dev, bootstrap commands and ephemeral storage (1.57): the array is mounted at /mnt/.ephemeral and
    # only directories below /mnt may be bound to it beside the system's own.
    OperatingSystem.BOTTLEROCKET: OperatingSystemFacts(
        user_data_format=UserDataFormat.TOML,
        root_device="/dev/xvda",
        data_device="/dev/xvdb",
        cache_host_path="/mnt/model-cache",
        ami_types={
            "amd64": ("BOTTLEROCKET_x86_64_NVIDIA", "BOTTLEROCKET_x86_64_NVIDIA_FIPS"),
            "arm64": ("BOTTLEROCKET_ARM_64_NVIDIA", "BOTTLEROCKET_ARM_64_NVIDIA_FIPS"),
        },
        brings_device_plugin=True,
    ),
}


def host_cache_mount(operating_system: OperatingSystem) -> str:
    """Path of the hostPath volume for the model cache, to be mounted with ``type: Directory``.

    With that type a pod on a node without a mounted instance store does not start. ``DirectoryOrCreate`` would put the
    cache on the root volume without a word.
    """
    return OPERATING_SYSTEMS[operating_system].cache_host_path


def stock_ami_type(operating_system: OperatingSystem, instance: InstanceType) -> str | None:
    """The AMI type that EKS publishes for this instance type, or None where its driver is too old for the GPU."""
    columns = {
        OperatingSystem.AL2023: instance.ami_type_al2023,
        OperatingSystem.BOTTLEROCKET: instance.ami_type_bottlerocket,
    }
    known = OPERATING_SYSTEMS[operating_system].ami_types.get(instance.arch, ())
    given = columns[operating_system]
    return given if given in known else None
