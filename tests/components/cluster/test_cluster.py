"""ServingCluster under mocks: a new cluster and an existing one give the same outputs."""

import json
from typing import Any

import pulumi
import pytest
from syrupy.assertion import SnapshotAssertion

from eks_gpu_serving.cluster import ServingCluster, ServingClusterArgs, kubeconfig_document
from harness import PREVIEW_MODES, UNKNOWN, Graph, run
from harness.cloud import (
    CLUSTER_CERTIFICATE_AUTHORITY,
    CLUSTER_ENDPOINT,
    CLUSTER_NAME,
    OIDC_ISSUER,
    OIDC_PROVIDER_ARN,
    SERVICE_CIDR,
    SUBNET_IDS,
    VPC_ID,
)
from harness.properties import collisions, same_resources, violations

COMPONENT = "eks-gpu-serving:index:ServingCluster"
EKS = "eks:index:Cluster"
NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
LOOK_UP = "aws:iam/getOpenIdConnectProvider:getOpenIdConnectProvider"
TAGS = {"team": "search"}
OWN_NETWORK: dict[str, Any] = {"vpc_id": VPC_ID, "private_subnet_ids": ["subnet-a", "subnet-b"]}


def cluster(name: str = "serving", **changes: Any) -> ServingCluster:
    arguments: dict[str, Any] = {"region": "eu-west-1", "tags": TAGS, **changes}
    return ServingCluster(name, ServingClusterArgs(**arguments))


def built(preview: bool = False, **changes: Any) -> Graph:
    return run(lambda: cluster(**changes), preview=preview)


def outputs(graph: Graph) -> dict[str, Any]:
    return dict(graph.one(COMPONENT).outputs or {})


def refused(**changes: Any) -> dict[str, str]:
    with pytest.raises(pulumi.InputPropertiesError) as caught:
        built(**changes)
    return {error["property_path"]: error["reason"] for error in caught.value.errors or []}


@pytest.mark.parametrize("changes", [{}, OWN_NETWORK, {"existing_name": CLUSTER_NAME}], ids=["new", "vpc", "existing"])
@pytest.mark.parametrize("preview", PREVIEW_MODES)
def test_it_keeps_the_rules_of_every_graph(changes: dict[str, Any], preview: bool) -> None:
    assert violations(built(preview, **changes), tags=TAGS) == []
    assert same_resources(lambda: cluster(**changes)) == []
    assert collisions(lambda name: cluster(name, **changes)) == []


def test_new_and_existing_clusters_give_the_same_outputs() -> None:
    new, existing = outputs(built()), outputs(built(existing_name=CLUSTER_NAME))

    common = {
        "endpoint": CLUSTER_ENDPOINT,
        "certificate_authority": CLUSTER_CERTIFICATE_AUTHORITY,
        "service_cidr": SERVICE_CIDR,
        "subnet_ids": list(SUBNET_IDS),
        "oidc_issuer": OIDC_ISSUER,
        "oidc_provider_arn": OIDC_PROVIDER_ARN,
    }
    assert set(new) == {*common, "cluster_name", "kubeconfig"}
    for found in (new, existing):
        assert {key: found[key] for key in common} == common
        assert json.loads(found["kubeconfig"])["current-context"] == found["cluster_name"]
    assert existing["cluster_name"] == CLUSTER_NAME


def test_the_kubeconfig_is_secret() -> None:
    assert built().one(COMPONENT).secret_outputs == {"kubeconfig"}
    assert built(existing_name=CLUSTER_NAME).one(COMPONENT).secret_outputs == {"kubeconfig"}


def test_a_preview_of_a_new_cluster_knows_none_of_it_and_of_an_existing_one_all() -> None:
    assert set(outputs(built(True)).values()) == {UNKNOWN}
    assert UNKNOWN not in map(str, outputs(built(True, existing_name=CLUSTER_NAME)).values())


def test_an_existing_cluster_is_only_read() -> None:
    graph = built(existing_name=CLUSTER_NAME)

    assert graph.names() == [(COMPONENT, "serving")]
    assert [invoke.token for invoke in graph.invokes] == ["aws:eks/getCluster:getCluster", LOOK_UP]


def test_a_given_oidc_provider_is_not_looked_up() -> None:
    graph = built(existing_name=CLUSTER_NAME, oidc_provider_arn="arn:aws:iam::1:oidc-provider/mine")

    assert outputs(graph)["oidc_provider_arn"] == "arn:aws:iam::1:oidc-provider/mine"
    assert LOOK_UP not in [invoke.token for invoke in graph.invokes], "the caller may not be allowed to list them"


def test_a_new_cluster_is_closed_where_it_can_be() -> None:
    inputs = built(enable_public_endpoint=False).one(EKS).inputs

    assert inputs["authenticationMode"] == "API"
    assert inputs["createOidcProvider"] is True, "without it no pod gets a role of its own"
    assert (inputs["endpointPrivateAccess"], inputs["endpointPublicAccess"]) == (True, False)
    assert inputs["enabledClusterLogTypes"] == ["audit", "authenticator"]
    assert inputs["skipDefaultNodeGroup"] is True
    assert inputs["tags"] == TAGS


def test_system_nodes_wait_for_the_cluster_and_carry_no_gpu_taint() -> None:
    graph = built(system_nodes=3, system_instance_type="m7i.2xlarge")

    group = graph.one(NODE_GROUP)
    assert group.inputs["scalingConfig"] == {"minSize": 3, "maxSize": 3, "desiredSize": 3}
    assert group.inputs["instanceTypes"] == ["m7i.2xlarge"]
    assert group.inputs["amiType"] == "AL2023_x86_64_STANDARD"
    assert "taints" not in group.inputs, "the head and the operator have to land somewhere"
    assert graph.one(EKS).urn in group.dependencies, "nodes become ready once the network add-on is there"


def test_given_subnets_are_those_of_the_nodes() -> None:
    graph = built(**OWN_NETWORK)

    assert graph.one(EKS).inputs["vpcId"] == VPC_ID
    assert graph.one(EKS).inputs["privateSubnetIds"] == OWN_NETWORK["private_subnet_ids"]
    assert graph.one(NODE_GROUP).inputs["subnetIds"] == OWN_NETWORK["private_subnet_ids"]
    assert outputs(graph)["subnet_ids"] == OWN_NETWORK["private_subnet_ids"]
    existing = built(existing_name=CLUSTER_NAME, private_subnet_ids=["subnet-c"])
    assert outputs(existing)["subnet_ids"] == ["subnet-c"]


def test_what_describes_a_new_cluster_is_refused_for_an_existing_one() -> None:
    reasons = refused(existing_name=CLUSTER_NAME, kubernetes_version="1.35", vpc_id=VPC_ID)

    assert set(reasons) == {"kubernetes_version", "vpc_id"}
    assert f"{CLUSTER_NAME!r} exists" in reasons["vpc_id"]


def test_every_refusal_comes_at_once_and_by_property() -> None:
    reasons = refused(
        oidc_provider_arn=OIDC_PROVIDER_ARN,
        vpc_id=VPC_ID,
        enable_public_endpoint=False,
        public_access_cidrs=["10.0.0.0/8"],
        system_instance_type="m7i.xlrage",
        system_nodes=0,
    )

    assert set(reasons) == {
        "oidc_provider_arn",
        "private_subnet_ids",
        "public_access_cidrs",
        "system_instance_type",
        "system_nodes",
    }
    assert "did you mean 'm7i.xlarge'?" in reasons["system_instance_type"]


def test_a_name_that_makes_a_role_name_too_long_is_refused() -> None:
    with pytest.raises(pulumi.InputPropertiesError, match="at most 39"):
        run(lambda: cluster("x" * 40))


def test_golden_kubeconfig(snapshot: SnapshotAssertion) -> None:
    document = kubeconfig_document(
        name="serving", endpoint=CLUSTER_ENDPOINT, certificate_authority="LS0tLS1CRUdJTg==", region="eu-west-1"
    )

    assert json.dumps(document, indent=2) == snapshot
