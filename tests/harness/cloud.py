"""What the cloud would answer: realistic ARNs, ids and lookups for the types whose outputs our code reads.

An output that is missing here is ``None`` in the program, and ``f"{arn}/*"`` then reads ``None/*``; the text rule of
``properties`` reports it. Add the answer here, in camelCase, when a new output is read.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pulumi.runtime import mocks

PROJECT = "eks-gpu-serving"
STACK = "test"

ACCOUNT_ID = "123456789012"
REGION = "eu-west-1"
CLUSTER_NAME = "serving-cluster"
OIDC_ISSUER = f"oidc.eks.{REGION}.amazonaws.com/id/0123456789ABCDEF0123456789ABCDEF"
OIDC_PROVIDER_ARN = f"arn:aws:iam::{ACCOUNT_ID}:oidc-provider/{OIDC_ISSUER}"
CLUSTER_ENDPOINT = f"https://0123456789ABCDEF0123456789ABCDEF.gr7.{REGION}.eks.amazonaws.com"
CLUSTER_CERTIFICATE_AUTHORITY = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg=="
SERVICE_CIDR = "172.20.0.0/16"
SUBNET_IDS = ("subnet-0a1b2c3d4e5f60001", "subnet-0a1b2c3d4e5f60002")
VPC_ID = "vpc-0a1b2c3d4e5f60000"

# sdk/go/common/resource/properties.go: how a mapping on the wire says that it stands for something else.
_SIGNATURE_KEY = "4dabf18193072939515e22adb298388d"
_RESOURCE_SIGNATURE = "5cf8f73096256a8f31e491e813e4eb8e"

Answer = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""Physical name and inputs (or, for an invoke, token and arguments) to outputs, camelCase."""


@dataclass(frozen=True, kw_only=True)
class Child:
    """As an output: a resource that a remote component made by itself, which no registration shows."""

    type: str
    name: str
    outputs: Mapping[str, Any]


def always(outputs: Mapping[str, Any]) -> Answer:
    """The same answer whatever was asked."""
    return lambda _name, _inputs: outputs


class Cloud(mocks.Mocks):
    """Answers registrations and invokes. ``resources`` and ``invokes`` replace single answers, by type or token."""

    def __init__(
        self, *, resources: Mapping[str, Answer] | None = None, invokes: Mapping[str, Answer] | None = None
    ) -> None:
        self.preview = False
        self.remote_resources: dict[str, mocks.MockMonitor.ResourceRegistration] = {}
        """By URN. The monitor puts its own table here."""
        self._resources = {**_RESOURCES, **(resources or {})}
        self._invokes = {**_INVOKES, **(invokes or {})}

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        inputs = {key: _unwrapped(value) for key, value in args.inputs.items()}
        if self.preview:
            return args.resource_id or None, inputs
        given = inputs.get("name") or (inputs.get("metadata") or {}).get("name")
        physical = given if isinstance(given, str) else f"{args.name}-0a1b2c3"
        outputs: dict[str, Any] = {"name": physical, **inputs} if args.typ.startswith("aws:") else dict(inputs)
        answer = self._resources.get(args.typ)
        if answer is not None:
            outputs.update(answer(physical, inputs))
        outputs = {key: self._reference(value) if isinstance(value, Child) else value for key, value in outputs.items()}
        return args.resource_id or str(outputs.pop("id", physical)), outputs

    def _reference(self, child: Child) -> dict[str, str]:
        """The wire form of a resource; the SDK asks for its state by URN."""
        urn = f"urn:pulumi:{STACK}::{PROJECT}::{child.type}::{child.name}"
        registration = mocks.MockMonitor.ResourceRegistration(urn, str(child.outputs["id"]), dict(child.outputs))
        self.remote_resources[urn] = registration
        return {_SIGNATURE_KEY: _RESOURCE_SIGNATURE, "urn": urn, "id": registration.id}

    def call(self, args: mocks.MockCallArgs) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        answer = self._invokes.get(args.token)
        if answer is None:
            raise NotImplementedError(f"no answer for the invoke {args.token}; add one to tests/harness/cloud.py")
        return dict(answer(args.token, args.args))


def _unwrapped(value: Any) -> Any:
    if isinstance(value, dict) and value.get(_SIGNATURE_KEY) and "value" in value:
        return value["value"]
    return value


def _arn(service: str, kind: str, region: str = REGION) -> Answer:
    return lambda name, _: {"arn": f"arn:aws:{service}:{region}:{ACCOUNT_ID}:{kind}{name}"}


def _role(name: str, _: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"arn": f"arn:aws:iam::{ACCOUNT_ID}:role/{name}", "uniqueId": "AROA0123456789EXAMPLE"}


def _launch_template(name: str, _: Mapping[str, Any]) -> Mapping[str, Any]:
    template_id = "lt-0a1b2c3d4e5f60789"
    arn = f"arn:aws:ec2:{REGION}:{ACCOUNT_ID}:launch-template/{template_id}"
    return {"id": template_id, "arn": arn, "latestVersion": 1, "defaultVersion": 1}


def _node_group(name: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    group = inputs.get("nodeGroupName") or name
    cluster = inputs.get("clusterName", CLUSTER_NAME)
    return {
        "id": f"{cluster}:{group}",
        "nodeGroupName": group,
        "arn": f"arn:aws:eks:{REGION}:{ACCOUNT_ID}:nodegroup/{cluster}/{group}/0a1b2c3d",
        "resources": [{"autoscalingGroups": [{"name": f"eks-{group}-0a1b2c3d"}], "remoteAccessSecurityGroupId": ""}],
        "status": "ACTIVE",
    }


def _kubeconfig(cluster: str) -> dict[str, Any]:
    exec_block = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "aws",
        "args": ["eks", "get-token", "--cluster-name", cluster],
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "kubernetes",
                "cluster": {
                    "server": CLUSTER_ENDPOINT,
                    "certificate-authority-data": CLUSTER_CERTIFICATE_AUTHORITY,
                },
            }
        ],
        "contexts": [{"name": "aws", "context": {"cluster": "kubernetes", "user": "aws"}}],
        "current-context": "aws",
        "users": [{"name": "aws", "user": {"exec": exec_block}}],
    }


def _eks_component(name: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "eksCluster": Child(type="aws:eks/cluster:Cluster", name=f"{name}-eksCluster", outputs=_cluster(name, {})),
        "kubeconfig": _kubeconfig(name),
        "kubeconfigJson": json.dumps(_kubeconfig(name)),
        "oidcIssuer": OIDC_ISSUER,
        "oidcProviderUrl": f"https://{OIDC_ISSUER}",
        "oidcProviderArn": OIDC_PROVIDER_ARN,
        "clusterSecurityGroupId": "sg-0a1b2c3d4e5f60001",
        "nodeSecurityGroupId": "sg-0a1b2c3d4e5f60002",
    }


def _cluster_facts(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "arn": f"arn:aws:eks:{REGION}:{ACCOUNT_ID}:cluster/{name}",
        "endpoint": CLUSTER_ENDPOINT,
        "version": "1.35",
        "status": "ACTIVE",
        "roleArn": f"arn:aws:iam::{ACCOUNT_ID}:role/{name}-cluster",
        "identities": [{"oidcs": [{"issuer": f"https://{OIDC_ISSUER}"}]}],
    }


def _cluster(name: str, _: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        **_cluster_facts(name),
        "id": name,
        "certificateAuthority": {"data": CLUSTER_CERTIFICATE_AUTHORITY},
        "kubernetesNetworkConfig": {"serviceIpv4Cidr": SERVICE_CIDR, "ipFamily": "ipv4"},
        "vpcConfig": {"subnetIds": list(SUBNET_IDS), "vpcId": VPC_ID},
    }


def _get_cluster(_: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        **_cluster_facts(str(args["name"])),
        "id": args["name"],
        "certificateAuthorities": [{"data": CLUSTER_CERTIFICATE_AUTHORITY}],
        "kubernetesNetworkConfigs": [{"serviceIpv4Cidr": SERVICE_CIDR, "ipFamily": "ipv4"}],
        "vpcConfig": {"subnetIds": list(SUBNET_IDS), "vpcId": VPC_ID, "clusterSecurityGroupId": "sg-0a1b2c3d4e5f60001"},
        "accessConfigs": [{"authenticationMode": "API"}],
        "tags": {},
    }


def _get_oidc_provider(_: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
    issuer = str(args.get("url") or OIDC_ISSUER).removeprefix("https://")
    return {
        "arn": f"arn:aws:iam::{ACCOUNT_ID}:oidc-provider/{issuer}",
        "url": issuer,
        "clientIdLists": ["sts.amazonaws.com"],
    }


_RESOURCES: Mapping[str, Answer] = {
    "aws:iam/role:Role": _role,
    "aws:iam/policy:Policy": _arn("iam", "policy/", region=""),
    "aws:ec2/launchTemplate:LaunchTemplate": _launch_template,
    "aws:eks/nodeGroup:NodeGroup": _node_group,
    "aws:eks/cluster:Cluster": _cluster,
    "aws:eks/addon:Addon": _arn("eks", "addon/"),
    "aws:kms/key:Key": _arn("kms", "key/"),
    "aws:sns/topic:Topic": _arn("sns", ""),
    "aws:s3/bucket:Bucket": lambda name, _: {"arn": f"arn:aws:s3:::{name}", "bucket": name},
    "aws:iam/openIdConnectProvider:OpenIdConnectProvider": always({"arn": OIDC_PROVIDER_ARN, "url": OIDC_ISSUER}),
    "eks:index:Cluster": _eks_component,
    "kubernetes:helm.sh/v3:Release": lambda name, _: {"name": name, "status": {"name": name, "status": "deployed"}},
}

_INVOKES: Mapping[str, Answer] = {
    "aws:index/getCallerIdentity:getCallerIdentity": always(
        {
            "accountId": ACCOUNT_ID,
            "arn": f"arn:aws:iam::{ACCOUNT_ID}:user/deployer",
            "id": ACCOUNT_ID,
            "userId": "AIDA0123456789EXAMPLE",
        }
    ),
    "aws:index/getRegion:getRegion": always({"id": REGION, "name": REGION, "region": REGION}),
    "aws:index/getPartition:getPartition": always({"id": "aws", "partition": "aws", "dnsSuffix": "amazonaws.com"}),
    "aws:eks/getCluster:getCluster": _get_cluster,
    "aws:iam/getOpenIdConnectProvider:getOpenIdConnectProvider": _get_oidc_provider,
}
