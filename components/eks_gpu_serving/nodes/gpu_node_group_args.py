"""Arguments of a GPU node group, their defaults and what is refused."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi

from eks_gpu_serving import name_limits
from eks_gpu_serving.aws_rules import tag_problems
from eks_gpu_serving.name_limits import name_problem
from eks_gpu_serving.nodes.checks import image_problems, size_problems, volume_problems
from eks_gpu_serving.nodes.names import OperatingSystem
from eks_gpu_serving.settings import CapacityType


@dataclass(frozen=True, kw_only=True)
class GpuNodeGroupArgs:
    """Arguments of :class:`GpuNodeGroup`."""

    cluster_name: pulumi.Input[str]
    """Name of the EKS cluster. Its authentication mode is API: EKS then makes the nodes' access entry itself."""
    subnet_ids: pulumi.Input[Sequence[pulumi.Input[str]]]
    """Subnets of the nodes, private ones."""
    instance_type: str
    """A GPU instance type with NVMe instance store, such as g6.xlarge."""
    max_nodes: int
    """Most nodes, 1 to 450."""
    min_nodes: int | None = None
    """Least nodes. Default 0."""
    desired_nodes: int | None = None
    """Nodes to start with; an autoscaler moves the number later and Pulumi leaves it alone. Default min_nodes."""
    pool: str | None = None
    """Value of the label ``eks-gpu-serving/pool`` on the nodes. Default: the name of the component."""
    operating_system: OperatingSystem | None = None
    """al2023 or bottlerocket. Default al2023."""
    capacity_type: CapacityType | None = None
    """on_demand or spot. Default on_demand."""
    ami_type: str | None = None
    """AMI type of EKS. Default: the NVIDIA one that fits operating system and architecture. Excludes ami_id."""
    ami_release_version: str | None = None
    """Release of the AMI type to pin, such as 1.35.0-20260520. Default: the latest when the group is made. Pin
    20260512 or newer on AL2023 (awslabs/amazon-eks-ami, pull request 2717)."""
    ami_id: str | None = None
    """An image of your own, for this operating system. Needs the three cluster_ inputs below."""
    cluster_endpoint: pulumi.Input[str] | None = None
    """Address of the cluster's API. Used with ami_id only."""
    cluster_certificate_authority: pulumi.Input[str] | None = None
    """Base64 certificate of the cluster's API. Used with ami_id only."""
    cluster_service_cidr: pulumi.Input[str] | None = None
    """Range of service addresses, IPv4. Used with ami_id only."""
    root_volume_gib: int | None = None
    """Size of the encrypted gp3 root volume in GiB, 20 to 16384. Images lie on the instance store. Default 100."""
    root_volume_iops: int | None = None
    """3000 to 16000. Default 3000."""
    root_volume_throughput_mibps: int | None = None
    """125 to 1000 MiB/s. Default 125."""
    kms_key_id: pulumi.Input[str] | None = None
    """ARN of the key of the root volume. Default: the account's key for EBS."""
    enable_node_repair: bool | None = None
    """Whether EKS replaces a node that stays unhealthy, one at a time. Repair does not wait for pod disruption
    budgets. Default true."""
    labels: Mapping[str, str] | None = None
    """More labels of the nodes."""
    partition: str | None = None
    """AWS partition. Default aws."""
    tags: Mapping[str, str] | None = None
    """Tags of everything, also of instances and volumes."""


def problems(name: str, args: GpuNodeGroupArgs) -> list[tuple[str, str]]:
    """Everything that is wrong with the arguments, as (property, reason)."""
    too_long = name_problem(name, name_limits.NODE_GROUP)
    found = [("name", too_long)] if too_long else []
    found += image_problems(
        instance_type=args.instance_type,
        operating_system=system(args),
        ami_type=args.ami_type,
        ami_id=args.ami_id,
        ami_release_version=args.ami_release_version,
    )
    found += size_problems(min_nodes=min_nodes(args), max_nodes=args.max_nodes, desired_nodes=desired_nodes(args))
    found += volume_problems(
        size_gib=root_volume_size_gib(args),
        iops=root_volume_iops(args),
        throughput_mibps=root_volume_throughput_mibps(args),
    )
    found += tag_problems(args.tags)
    if args.ami_id is not None:
        needed = ("cluster_endpoint", "cluster_certificate_authority", "cluster_service_cidr")
        reason = "is required with ami_id: EKS tells only its own images how to join the cluster"
        found += [(field, reason) for field in needed if getattr(args, field) is None]
    return found


def system(args: GpuNodeGroupArgs) -> OperatingSystem:
    """The operating system."""
    return args.operating_system or OperatingSystem.AL2023


def min_nodes(args: GpuNodeGroupArgs) -> int:
    """Least nodes."""
    return 0 if args.min_nodes is None else args.min_nodes


def desired_nodes(args: GpuNodeGroupArgs) -> int:
    """Nodes to start with."""
    return min_nodes(args) if args.desired_nodes is None else args.desired_nodes


def root_volume_size_gib(args: GpuNodeGroupArgs) -> int:
    """Size of the root volume in GiB."""
    return 100 if args.root_volume_gib is None else args.root_volume_gib


def root_volume_iops(args: GpuNodeGroupArgs) -> int:
    """IOPS of the root volume."""
    return 3000 if args.root_volume_iops is None else args.root_volume_iops


def root_volume_throughput_mibps(args: GpuNodeGroupArgs) -> int:
    """Throughput of the root volume in MiB/s."""
    return 125 if args.root_volume_throughput_mibps is None else args.root_volume_throughput_mibps
