"""CPU instance types for the head, the operator and cluster services."""

from dataclasses import dataclass

from ray_model_serving.contract.problems import nearest


@dataclass(frozen=True, kw_only=True)
class SystemInstance:
    """vCPUs, memory in GiB, USD per hour."""

    vcpu: int
    memory_gib: int
    usd_per_hour: float


# https://aws.amazon.com/ec2/instance-types/m7i/ and EC2 on-demand pricing, us-east-1, Linux (2026).
SYSTEM_INSTANCES = {
    "m7i.xlarge": SystemInstance(vcpu=4, memory_gib=16, usd_per_hour=0.2016),
    "m7i.2xlarge": SystemInstance(vcpu=8, memory_gib=32, usd_per_hour=0.4032),
    "m7i.4xlarge": SystemInstance(vcpu=16, memory_gib=64, usd_per_hour=0.8064),
}
DEFAULT_SYSTEM_INSTANCE_TYPE = "m7i.xlarge"
DEFAULT_SYSTEM_NODES = 2
MAX_SYSTEM_NODES = 20


def system_instance_problem(name: str) -> str | None:
    """Why system nodes can't be of this type, or None."""
    return (
        None
        if name in SYSTEM_INSTANCES
        else f"is no type that the plan knows for system nodes; {nearest(name, SYSTEM_INSTANCES)}"
    )
