"""What AWS accepts: ids, names and bounds. Settings and components are checked against the same ones."""

import ipaddress
import re
from collections.abc import Mapping

Reason = tuple[str, str]
"""A property and what is wrong with it."""

REGION = r"[a-z]{2}(-[a-z]+)+-\d"
AMI_ID = r"ami-[0-9a-f]{8,17}"
VPC_ID = r"vpc-[0-9a-f]{8,17}"
SUBNET_ID = r"subnet-[0-9a-f]{8,17}"
# Key ARNs only: IAM compares aliases with nothing.
KEY_ARN = r"arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+"
# EKS API reference, CreateCluster, name (2026).
CLUSTER_NAME = r"[0-9A-Za-z][A-Za-z0-9_-]{0,99}"

# EKS service quotas: nodes per managed node group.
MAX_NODES = 450
# Amazon EBS user guide, "General Purpose SSD volumes", gp3 as the aws provider accepts it (7.51); the system image
# needs the least.
MIN_ROOT_VOLUME_GIB, MAX_ROOT_VOLUME_GIB = 20, 16_384

# https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html (read 2026-11): in standard support.
KUBERNETES_VERSIONS = ("1.34", "1.35", "1.36")
DEFAULT_KUBERNETES_VERSION = "1.35"

# https://docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html (2026). A resource has 50
# tags; EKS adds some to what a component is given, and a stack adds its own before.
_MAX_TAGS = 45
MAX_STACK_TAGS = 40
_MAX_KEY, _MAX_VALUE = 128, 256
_TAG_TEXT = re.compile(r"[\w .:/=+@-]*")


def kubernetes_version_problem(text: str) -> str | None:
    """What is wrong with the version of a new cluster, or None."""
    return None if text in KUBERNETES_VERSIONS else f"must be one of {', '.join(KUBERNETES_VERSIONS)}, quoted"


def cidr_problem(text: str) -> str | None:
    """What is wrong with a range that may reach a cluster's API, or None."""
    try:
        ipaddress.IPv4Network(text)
    except ValueError:
        return "must be an IPv4 range without host bits, such as 203.0.113.0/24"
    return None if "/" in text else "must be a range, such as 203.0.113.7/32"


def tag_problems(tags: Mapping[str, str] | None, most: int = _MAX_TAGS) -> list[Reason]:
    """Keys and values that AWS would refuse, as (``tags.<key>``, reason)."""
    tags = tags or {}
    found: list[Reason] = []
    if len(tags) > most:
        found.append(("tags", f"got {len(tags)} tags, at most {most}: AWS takes 50, and some are added"))
    for key, value in tags.items():
        if not 1 <= len(key) <= _MAX_KEY:
            found.append((f"tags.{key}", f"got a key of {len(key)} characters, AWS takes 1 to {_MAX_KEY}"))
        elif len(value) > _MAX_VALUE:
            found.append((f"tags.{key}", f"got a value of {len(value)} characters, AWS takes 0 to {_MAX_VALUE}"))
        elif key.lower().startswith("aws:"):
            found.append((f"tags.{key}", "keys that begin with aws: belong to AWS"))
        elif not _TAG_TEXT.fullmatch(key) or not _TAG_TEXT.fullmatch(value):
            found.append((f"tags.{key}", "keys and values have letters, digits, spaces and _ . : / = + - @ only"))
    return found


def cluster_problems(
    *,
    existing_name: str | None,
    of_new: Mapping[str, object],
    vpc_given: bool,
    subnets_given: bool,
    public_endpoint: bool | None,
    public_access_cidrs: object,
) -> list[Reason]:
    """What does not go together in the description of a cluster. ``of_new`` has what describes a new one, None where it
    was left out; subnets are not in it, since nodes of ours may have their own in an existing cluster."""
    if existing_name is not None:
        given = [name for name, value in of_new.items() if value is not None]
        return [(name, f"describes a new cluster, {existing_name!r} exists: leave it out") for name in given]
    found: list[Reason] = []
    if vpc_given and not subnets_given:
        found.append(("private_subnet_ids", "is empty, a given vpc_id needs the subnets of its nodes"))
    if public_endpoint is False and public_access_cidrs:
        found.append(("public_access_cidrs", "has no meaning without a public endpoint"))
    return found
