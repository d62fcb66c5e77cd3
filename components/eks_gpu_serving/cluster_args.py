"""Arguments of a cluster, and what is refused."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pulumi

from eks_gpu_serving import aws_rules, name_limits
from eks_gpu_serving.name_limits import name_problem
from eks_gpu_serving.planning.system_nodes import MAX_SYSTEM_NODES, system_instance_problem


@dataclass(frozen=True, kw_only=True)
class ServingClusterArgs:
    """Arguments of :class:`ServingCluster`."""

    region: str
    """Region of the cluster, such as us-east-1."""
    existing_name: str | None = None
    """Name of an existing EKS cluster; what describes a new one is then refused. Default: a new cluster."""
    oidc_provider_arn: pulumi.Input[str] | None = None
    """IAM OIDC provider of an existing cluster. Default: looked up by the cluster's issuer."""
    kubernetes_version: str | None = None
    """Version of a new cluster. Default 1.35."""
    vpc_id: pulumi.Input[str] | None = None
    """VPC of a new cluster. Default: the account's default VPC."""
    private_subnet_ids: Sequence[pulumi.Input[str]] | None = None
    """Subnets of nodes, at least two zones. Default: the cluster's own subnets."""
    enable_public_endpoint: bool | None = None
    """Whether the API of a new cluster is reachable from the internet; from the VPC it always is. Default true."""
    public_access_cidrs: Sequence[str] | None = None
    """Ranges that may reach the public API of a new cluster. Default: everyone, with credentials."""
    system_instance_type: str | None = None
    """Instance type of the nodes for the head, the operator and cluster services. Default m7i.xlarge."""
    system_nodes: int | None = None
    """Number of such nodes, 1 to 20. Default 2."""
    tags: Mapping[str, str] | None = None
    """Tags of everything, also of instances and volumes."""


def problems(name: str, args: ServingClusterArgs) -> list[tuple[str, str]]:
    """Everything that is wrong with the arguments, as (property, reason)."""
    of_new = ("kubernetes_version", "vpc_id", "enable_public_endpoint", "public_access_cidrs")
    of_new += ("system_instance_type", "system_nodes")
    found = aws_rules.cluster_problems(
        existing_name=args.existing_name,
        of_new={field: getattr(args, field) for field in of_new},
        vpc_given=args.vpc_id is not None,
        subnets_given=bool(args.private_subnet_ids),
        public_endpoint=args.enable_public_endpoint,
        public_access_cidrs=args.public_access_cidrs,
    )
    if args.existing_name is None:
        too_long = name_problem(name, name_limits.CLUSTER)
        found += [("name", too_long)] if too_long else []
        if args.oidc_provider_arn is not None:
            found.append(("oidc_provider_arn", "belongs to an existing cluster; a new one gets its own"))
    elif not re.fullmatch(aws_rules.CLUSTER_NAME, args.existing_name):
        found.append(("existing_name", f"got {args.existing_name!r}, must match {aws_rules.CLUSTER_NAME}"))
    if not re.fullmatch(aws_rules.REGION, args.region):
        found.append(("region", f"got {args.region!r}, must be an AWS region such as us-east-1"))
    words: list[tuple[str, str | None, Callable[[str], str | None]]] = [
        ("kubernetes_version", args.kubernetes_version, aws_rules.kubernetes_version_problem),
        ("system_instance_type", args.system_instance_type, system_instance_problem),
    ]
    words += [("public_access_cidrs", cidr, aws_rules.cidr_problem) for cidr in args.public_access_cidrs or ()]
    for field, given, problem in words:
        reason = None if given is None else problem(given)
        found += [(field, f"got {given!r}, {reason}")] if reason else []
    if args.system_nodes is not None and not 1 <= args.system_nodes <= MAX_SYSTEM_NODES:
        found.append(("system_nodes", f"got {args.system_nodes}, must be 1 to {MAX_SYSTEM_NODES}"))
    return found + aws_rules.tag_problems(args.tags)
