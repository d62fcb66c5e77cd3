"""The GPU instance table: what EC2 and EKS offer, read from ``data/gpu_instances.csv``.

Source of the rows: Karpenter 1.14.1, ``website/content/en/docs/reference/instance-types.md`` (made from EC2
DescribeInstanceTypes on 2026-07-11; allocatable values on AL2023) and
``pkg/providers/pricing/zz_generated.pricing_aws.go`` (2026-07-20, us-east-1 on demand). AMI types: Amazon EKS user
guide, "EKS optimized accelerated AMIs" (2026). The number of disks of a type is in neither source.
"""

import csv
import functools
from dataclasses import dataclass
from importlib import resources

from ray_model_serving.contract.problems import nearest


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """One row of the table. Memory in MiB, disk in GB (10^9 bytes), network in Mbit/s, price in USD per hour."""

    name: str
    family: str
    arch: str
    vcpu: int
    memory_mib: int
    gpu_count: int
    gpu_name: str
    gpu_memory_mib: int
    """Of each GPU."""
    nvme_total_gb: int
    network_baseline_mbps: int
    allocatable_cpu_m: int
    """Thousandths of a CPU that pods may use, before daemon sets."""
    allocatable_memory_mib: int
    usd_per_hour: float | None
    """On demand in us-east-1; None where the source has no price."""
    ami_type_al2023: str
    ami_type_bottlerocket: str
    note: str

    @property
    def disk_bytes(self) -> int:
        """All NVMe disks together."""
        return self.nvme_total_gb * 1000**3


@functools.cache
def instance_types() -> dict[str, InstanceType]:
    """Every known GPU instance type by name."""
    text = resources.files("eks_gpu_serving").joinpath("data/gpu_instances.csv").read_text(encoding="utf-8")
    return {row["instance_type"]: _read_row(row) for row in csv.DictReader(text.splitlines())}


def instance_problem(name: str) -> str | None:
    """Why a GPU pool with a model cache can't be made of this type, or None; the name goes before it."""
    known = instance_types()
    if name not in known:
        return f"is not in the table of GPU instance types; {nearest(name, known)}"
    instance = known[name]
    if instance.gpu_count == 0:
        return f"offers no whole GPU to Kubernetes ({instance.note or 'no GPU'}); try g6.xlarge"
    if instance.nvme_total_gb == 0:
        return "has no NVMe instance store for the model cache; try g6.xlarge or g6e.xlarge"
    return None


def _read_row(row: dict[str, str]) -> InstanceType:
    return InstanceType(
        name=row["instance_type"],
        family=row["family"],
        arch=row["arch"],
        vcpu=int(row["vcpu"]),
        memory_mib=int(row["memory_mib"]),
        gpu_count=int(row["gpu_count"]),
        gpu_name=row["gpu_name"],
        gpu_memory_mib=int(row["gpu_memory_mib_per_gpu"]),
        nvme_total_gb=int(row["nvme_total_gb"]),
        network_baseline_mbps=int(row["network_baseline_mbps"]),
        allocatable_cpu_m=int(row["karpenter_allocatable_cpu_m"]),
        allocatable_memory_mib=int(row["karpenter_allocatable_memory_mib"]),
        usd_per_hour=float(row["od_usd_per_hour_us_east_1"]) if row["od_usd_per_hour_us_east_1"] else None,
        ami_type_al2023=row["eks_ami_type_al2023"],
        ami_type_bottlerocket=row["eks_ami_type_bottlerocket"],
        note=row["note"],
    )
