"""Refuses node groups that EC2 would start and that would never serve: one answer for settings and for components."""

import re

from eks_gpu_serving import aws_rules
from eks_gpu_serving.aws_rules import Reason
from eks_gpu_serving.nodes.names import OperatingSystem
from eks_gpu_serving.nodes.operating_systems import OPERATING_SYSTEMS, stock_ami_type
from eks_gpu_serving.planning.instances import InstanceType, instance_problem, instance_types
from ray_model_serving.contract.problems import nearest

# Amazon EBS user guide, "General Purpose SSD volumes", gp3 as the aws provider accepts it (7.51).
_GP3_IOPS = (3_000, 16_000)
_GP3_THROUGHPUT_MIBPS = (125, 1_000)
_GP3_IOPS_PER_MIBPS = 4


def image_problems(
    *,
    instance_type: str,
    operating_system: OperatingSystem,
    ami_type: str | None = None,
    ami_id: str | None = None,
    ami_release_version: str | None = None,
) -> list[Reason]:
    """What does not fit together among instance type, operating system and image (UR-064). Empty where all fits."""
    found: list[Reason] = []
    unusable = instance_problem(instance_type)
    if unusable:
        found.append(("instance_type", f"got {instance_type!r}, {unusable}"))
    if ami_id is not None and ami_type is not None:
        found.append(("ami_type", f"got {ami_type!r} beside ami_id {ami_id!r}; the image decides, give one of the two"))
    if ami_id is not None and not re.fullmatch(aws_rules.AMI_ID, ami_id):
        found.append(("ami_id", f"got {ami_id!r}, an image id looks like ami-0123456789abcdef0"))
    if ami_id is not None and ami_release_version is not None:
        found.append(("ami_release_version", "excludes ami_id: a release belongs to an AMI type of EKS"))
    instance = instance_types().get(instance_type)
    if instance is not None and ami_id is None:
        found += _ami_type_problems(instance, operating_system, ami_type)
    return found


def _ami_type_problems(instance: InstanceType, system: OperatingSystem, ami_type: str | None) -> list[Reason]:
    fitting = OPERATING_SYSTEMS[system].ami_types.get(instance.arch, ())
    stock = stock_ami_type(system, instance)
    if stock is None:
        why = f" ({instance.note})" if instance.note else ""
        missing = f"is required: EKS publishes no {system.value} NVIDIA image for {instance.name}{why}"
        return [("ami_id", f"{missing}; give an image of your own, or take another instance type such as g6e.xlarge")]
    if ami_type is None or ami_type in fitting:
        return []
    everything = {name for facts in OPERATING_SYSTEMS.values() for names in facts.ami_types.values() for name in names}
    if ami_type.startswith("AL2_"):
        reason = f"Amazon Linux 2 images are no longer published; use {stock}"
    elif ami_type not in everything:
        reason = f"not an AMI type with an NVIDIA driver; {nearest(ami_type, everything)}"
    else:
        reason = f"does not fit {system.value} on {instance.arch} ({instance.name}); valid: {', '.join(fitting)}"
    return [("ami_type", f"got {ami_type!r}, {reason}")]


def size_problems(*, min_nodes: int, max_nodes: int, desired_nodes: int) -> list[Reason]:
    """What is wrong with the bounds of a node group."""
    found: list[Reason] = []
    most = aws_rules.MAX_NODES
    if not 1 <= max_nodes <= most:
        found.append(("max_nodes", f"got {max_nodes}, must be 1 to {most}, the EKS quota of a node group"))
    if not 0 <= min_nodes <= max_nodes:
        found.append(("min_nodes", f"got {min_nodes}, must be 0 to max_nodes {max_nodes}"))
    elif not min_nodes <= desired_nodes <= max_nodes:
        found.append(("desired_nodes", f"got {desired_nodes}, must be {min_nodes} to {max_nodes}, the node bounds"))
    return found


def volume_problems(*, size_gib: int, iops: int, throughput_mibps: int) -> list[Reason]:
    """What is wrong with a gp3 root volume."""
    found: list[Reason] = []
    least, most = aws_rules.MIN_ROOT_VOLUME_GIB, aws_rules.MAX_ROOT_VOLUME_GIB
    if not least <= size_gib <= most:
        found.append(("root_volume_gib", f"got {size_gib}, must be {least} to {most}; the system image needs {least}"))
    if not _GP3_IOPS[0] <= iops <= _GP3_IOPS[1]:
        found.append(("root_volume_iops", f"got {iops}, gp3 takes {_GP3_IOPS[0]} to {_GP3_IOPS[1]}"))
    low, high = _GP3_THROUGHPUT_MIBPS
    if not low <= throughput_mibps <= high:
        found.append(("root_volume_throughput_mibps", f"got {throughput_mibps}, gp3 takes {low} to {high} MiB/s"))
    elif throughput_mibps * _GP3_IOPS_PER_MIBPS > iops:
        least = throughput_mibps * _GP3_IOPS_PER_MIBPS
        reason = f"got {iops} with {throughput_mibps} MiB/s, gp3 needs {_GP3_IOPS_PER_MIBPS} IOPS per MiB/s: {least}"
        found.append(("root_volume_iops", reason))
    return found
