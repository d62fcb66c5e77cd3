"""The EKS cluster, new or existing: what the rest of the stack has to know of it, in the same outputs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_eks as eks

from eks_gpu_serving import aws_rules
from eks_gpu_serving.args import raise_problems, read_args
from eks_gpu_serving.cluster_args import ServingClusterArgs, problems
from eks_gpu_serving.identity_documents import partition_of
from eks_gpu_serving.nodes.names import POOL_LABEL
from eks_gpu_serving.nodes.parts import encrypted_volume, latest_version, launch_template, node_role
from eks_gpu_serving.planning.system_nodes import (
    DEFAULT_SYSTEM_INSTANCE_TYPE,
    DEFAULT_SYSTEM_NODES,
)
from eks_gpu_serving.tokens import token

_SYSTEM_VOLUME_GIB = 100
# Who did what through the API: the two that an incident needs. The others cost more than they tell.
_LOG_TYPES = ["audit", "authenticator"]


class ServingCluster(pulumi.ComponentResource):
    """An EKS cluster to serve from.

    Creates, unless ``existing_name`` is given:

    - an EKS cluster with an IAM OIDC provider, authentication mode API, a private API endpoint and audit logs;
    - a managed node group of CPU nodes (AL2023, IMDSv2, encrypted gp3) with its role and launch template.

    Does not:

    - create a VPC;
    - change an existing cluster;
    - create access entries for node groups: EKS does for managed ones, in every authentication mode;
    - make a Kubernetes provider: the program makes one from ``kubeconfig`` and passes it on, so that no component can
      land in the ambient cluster.
    """

    cluster_name: pulumi.Output[str]
    """Physical name."""
    endpoint: pulumi.Output[str]
    """Address of the API, with ``https://``."""
    certificate_authority: pulumi.Output[str]
    """Base64 certificate of the API."""
    service_cidr: pulumi.Output[str]
    """IPv4 range of services."""
    subnet_ids: pulumi.Output[Sequence[str]]
    """Subnets for nodes."""
    oidc_issuer: pulumi.Output[str]
    """OIDC issuer without ``https://``, the form that trust conditions use."""
    oidc_provider_arn: pulumi.Output[str]
    """ARN of the IAM OIDC provider."""
    kubeconfig: pulumi.Output[str]
    """Secret. JSON kubeconfig that gets a token from ``aws eks get-token``."""

    def __init__(self, name: str, args: ServingClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(token("ServingCluster"), name, {}, opts)
        args = read_args(ServingClusterArgs, args, f"ServingCluster {name!r}")
        raise_problems(f"ServingCluster {name!r}", problems(name, args))
        if args.existing_name is None:
            self._create(name, args)
        else:
            self._look_up(args.existing_name, args)
        if args.private_subnet_ids is not None:
            self.subnet_ids = pulumi.Output.all(*args.private_subnet_ids)
        region = args.region
        self.kubeconfig = pulumi.Output.secret(
            pulumi.Output.all(
                name=self.cluster_name, endpoint=self.endpoint, certificate_authority=self.certificate_authority
            ).apply(lambda values: json.dumps(kubeconfig_document(**values, region=region)))
        )
        self.register_outputs(
            {
                "cluster_name": self.cluster_name,
                "endpoint": self.endpoint,
                "certificate_authority": self.certificate_authority,
                "service_cidr": self.service_cidr,
                "subnet_ids": self.subnet_ids,
                "oidc_issuer": self.oidc_issuer,
                "oidc_provider_arn": self.oidc_provider_arn,
                "kubeconfig": self.kubeconfig,
            }
        )

    def _create(self, name: str, args: ServingClusterArgs) -> None:
        tags = dict(args.tags or {})
        created = eks.Cluster(
            f"{name}-eks",
            version=args.kubernetes_version or aws_rules.DEFAULT_KUBERNETES_VERSION,
            vpc_id=args.vpc_id,
            private_subnet_ids=args.private_subnet_ids,
            endpoint_private_access=True,
            endpoint_public_access=args.enable_public_endpoint is not False,
            public_access_cidrs=args.public_access_cidrs,
            create_oidc_provider=True,
            authentication_mode=eks.AuthenticationMode.API,
            enabled_cluster_log_types=_LOG_TYPES,
            # Nodes are ours, below: with our launch template, and in the security group that EKS itself makes.
            skip_default_node_group=True,
            skip_default_security_groups=True,
            tags=tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
        cluster = created.eks_cluster
        self.cluster_name = cluster.apply(lambda made: made.name)
        self.endpoint = cluster.apply(lambda made: made.endpoint)
        self.certificate_authority = cluster.apply(lambda made: made.certificate_authority).apply(_certificate)
        self.service_cidr = cluster.apply(lambda made: made.kubernetes_network_config).apply(_service_cidr)
        self.subnet_ids = cluster.apply(lambda made: made.vpc_config).apply(lambda config: config.subnet_ids)
        self.oidc_issuer = created.oidc_issuer
        self.oidc_provider_arn = created.oidc_provider_arn
        self._create_system_nodes(f"{name}-system", args, {**tags, "Name": f"{name}-system"}, created)

    def _create_system_nodes(
        self, name: str, args: ServingClusterArgs, tags: Mapping[str, str], cluster: eks.Cluster
    ) -> None:
        role, policies = node_role(name, partition=partition_of(args.region), tags=tags, parent=self)
        volume = encrypted_volume("/dev/xvda", size_gib=_SYSTEM_VOLUME_GIB)
        template = launch_template(name, volumes=[volume], tags=tags, parent=self)
        count = args.system_nodes or DEFAULT_SYSTEM_NODES
        aws.eks.NodeGroup(
            f"{name}-nodes",
            cluster_name=self.cluster_name,
            node_role_arn=role.arn,
            subnet_ids=self.subnet_ids if args.private_subnet_ids is None else args.private_subnet_ids,
            instance_types=[args.system_instance_type or DEFAULT_SYSTEM_INSTANCE_TYPE],
            ami_type="AL2023_x86_64_STANDARD",
            launch_template=latest_version(template),
            scaling_config=aws.eks.NodeGroupScalingConfigArgs(min_size=count, max_size=count, desired_size=count),
            update_config=aws.eks.NodeGroupUpdateConfigArgs(max_unavailable=1),
            labels={POOL_LABEL: "system"},
            tags=tags,
            # The cluster as a whole: nodes become ready once its network add-on is there.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*policies, cluster]),
        )

    def _look_up(self, existing_name: str, args: ServingClusterArgs) -> None:
        options = pulumi.InvokeOutputOptions(parent=self)
        found = aws.eks.get_cluster_output(name=existing_name, opts=options)
        issuer_url = found.identities.apply(lambda identities: identities[0].oidcs[0].issuer)
        self.cluster_name = found.name
        self.endpoint = found.endpoint
        self.certificate_authority = found.certificate_authorities.apply(lambda found: found[0].data)
        self.service_cidr = found.kubernetes_network_configs.apply(lambda found: found[0].service_ipv4_cidr)
        self.subnet_ids = found.vpc_config.apply(lambda config: config.subnet_ids)
        self.oidc_issuer = issuer_url.apply(lambda url: url.removeprefix("https://"))
        if args.oidc_provider_arn is not None:
            self.oidc_provider_arn = pulumi.Output.from_input(args.oidc_provider_arn)
        else:
            self.oidc_provider_arn = aws.iam.get_open_id_connect_provider_output(url=issuer_url, opts=options).arn


def kubeconfig_document(*, name: str, endpoint: str, certificate_authority: str, region: str) -> dict[str, Any]:
    """A kubeconfig for the cluster. It holds no credentials: ``aws eks get-token`` turns the caller's into a token."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": endpoint, "certificate-authority-data": certificate_authority}}
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
        "users": [
            {
                "name": name,
                "user": {
                    "exec": {
                        "apiVersion": "client.authentication.k8s.io/v1beta1",
                        "command": "aws",
                        "args": ["--region", region, "eks", "get-token", "--cluster-name", name, "--output", "json"],
                    }
                },
            }
        ],
    }


def _certificate(found: aws.eks.outputs.ClusterCertificateAuthority) -> str:
    assert found.data is not None  # EKS has one as soon as the cluster is active
    return found.data


def _service_cidr(found: aws.eks.outputs.ClusterKubernetesNetworkConfig) -> str:
    return found.service_ipv4_cidr or ""
