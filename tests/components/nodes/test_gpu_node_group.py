"""GpuNodeGroup under mocks: what it creates, and what it refuses."""

import base64
import json
from typing import Any

import pulumi
import pytest
from syrupy.assertion import SnapshotAssertion

from eks_gpu_serving.nodes.gpu_node_group import GpuNodeGroup, GpuNodeGroupArgs
from eks_gpu_serving.nodes.names import OperatingSystem
from eks_gpu_serving.nodes.user_data import render_user_data
from eks_gpu_serving.settings import CapacityType
from harness import PREVIEW_MODES, UNKNOWN, Graph, run
from harness.cloud import CLUSTER_CERTIFICATE_AUTHORITY, CLUSTER_ENDPOINT, SERVICE_CIDR, SUBNET_IDS
from harness.properties import collisions, same_resources, violations

NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
TAGS = {"team": "search"}
BASE: dict[str, Any] = {
    "cluster_name": "serving",
    "subnet_ids": list(SUBNET_IDS),
    "instance_type": "g6.xlarge",
    "max_nodes": 4,
    "tags": TAGS,
}
OWN_IMAGE: dict[str, Any] = {
    "ami_id": "ami-0123456789abcdef0",
    "cluster_endpoint": CLUSTER_ENDPOINT,
    "cluster_certificate_authority": CLUSTER_CERTIFICATE_AUTHORITY,
    "cluster_service_cidr": SERVICE_CIDR,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "al2023": {},
    "bottlerocket": {"operating_system": OperatingSystem.BOTTLEROCKET},
    "own-image": OWN_IMAGE,
    "spot": {"capacity_type": CapacityType.SPOT, "min_nodes": 1, "ami_release_version": "1.35.0-20260520"},
}


def group(name: str = "l4", **changes: Any) -> GpuNodeGroup:
    return GpuNodeGroup(name, GpuNodeGroupArgs(**{**BASE, **changes}))


def built(preview: bool = False, **changes: Any) -> Graph:
    return run(lambda: group(**changes), preview=preview)


def refused(**changes: Any) -> dict[str, str]:
    with pytest.raises(pulumi.InputPropertiesError) as caught:
        built(**changes)
    assert "GpuNodeGroup 'l4'" in caught.value.message
    return {error["property_path"]: error["reason"] for error in caught.value.errors or []}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("preview", PREVIEW_MODES)
def test_it_keeps_the_rules_of_every_graph(variant: str, preview: bool) -> None:
    assert violations(built(preview, **VARIANTS[variant]), tags=TAGS) == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_preview_shows_everything_and_two_groups_never_collide(variant: str) -> None:
    assert same_resources(lambda: group(**VARIANTS[variant])) == []
    assert collisions(lambda name: group(name, **VARIANTS[variant])) == []


def test_golden_list_of_resources(snapshot: SnapshotAssertion) -> None:
    assert built().names() == snapshot, "a renamed child is a replaced child"


def test_the_image_decides_between_ami_type_and_image_id() -> None:  # UR-064
    stock, own = built(), built(**OWN_IMAGE)

    assert stock.one(NODE_GROUP).inputs["amiType"] == "AL2023_x86_64_NVIDIA"
    assert "imageId" not in stock.one(TEMPLATE).inputs
    assert "amiType" not in own.one(NODE_GROUP).inputs
    assert own.one(TEMPLATE).inputs["imageId"] == OWN_IMAGE["ami_id"]


@pytest.mark.parametrize("system", OperatingSystem)
@pytest.mark.parametrize("preview", PREVIEW_MODES)
def test_user_data_is_base64_of_the_rendered_text(system: OperatingSystem, preview: bool) -> None:  # UR-064
    template = built(preview, operating_system=system).one(TEMPLATE)

    assert base64.b64decode(template.inputs["userData"]).decode() == render_user_data(system)


def test_an_own_image_learns_its_cluster_from_outputs() -> None:
    def build() -> None:
        outputs: dict[str, Any] = {
            key: pulumi.Output.from_input(value) for key, value in OWN_IMAGE.items() if key != "ami_id"
        }
        outputs["cluster_name"] = pulumi.Output.from_input("serving")
        group("l4", ami_id=OWN_IMAGE["ami_id"], **outputs)

    text = base64.b64decode(run(build).one(TEMPLATE).inputs["userData"]).decode()

    for needed in ("serving", CLUSTER_ENDPOINT, CLUSTER_CERTIFICATE_AUTHORITY, SERVICE_CIDR):
        assert needed in text
    assert "eks-gpu-serving/pool=l4" in text, "EKS sets labels on nodes of its own images only"


def test_bottlerocket_encrypts_both_of_its_volumes() -> None:
    volumes = built(operating_system=OperatingSystem.BOTTLEROCKET).one(TEMPLATE).inputs["blockDeviceMappings"]

    assert [volume["deviceName"] for volume in volumes] == ["/dev/xvda", "/dev/xvdb"]
    assert "volumeSize" not in volumes[0]["ebs"]
    assert volumes[1]["ebs"] == {
        "volumeType": "gp3",
        "volumeSize": 100,
        "iops": 3000,
        "throughput": 125,
        "encrypted": "true",
        "deleteOnTermination": "true",
    }


def test_pods_without_a_role_of_their_own_find_no_credentials() -> None:  # UR-061
    graph = built()

    metadata = graph.one(TEMPLATE).inputs["metadataOptions"]
    policies = {a.inputs["policyArn"] for a in graph.of_type("aws:iam/rolePolicyAttachment:RolePolicyAttachment")}
    assert (metadata["httpTokens"], metadata["httpPutResponseHopLimit"]) == ("required", 1)
    assert {arn.rpartition("/")[2] for arn in policies} == {
        "AmazonEKSWorkerNodePolicy",
        "AmazonEKS_CNI_Policy",
        "AmazonEC2ContainerRegistryPullOnly",
        "AmazonSSMManagedInstanceCore",
    }, "the nodes' role reads no bucket, so that a missing pod role is an error and not a broad grant"
    assert graph.of_type("aws:iam/rolePolicy:RolePolicy") == []


def test_bounds_labels_and_taint_reach_the_node_group() -> None:  # UR-067
    inputs = built(min_nodes=1, labels={"tier": "gpu", "eks-gpu-serving/pool": "mine"}, pool="l4-pool").one(NODE_GROUP)

    assert inputs.inputs["scalingConfig"] == {"minSize": 1, "maxSize": 4, "desiredSize": 1}
    assert inputs.ignore_changes == ("scalingConfig.desiredSize",), "an autoscaler's nodes would be taken away"
    assert inputs.inputs["labels"] == {
        "tier": "gpu",
        "eks-gpu-serving/pool": "l4-pool",
        "eks-gpu-serving/operating-system": "al2023",
        "nvidia.com/gpu.present": "true",
    }
    assert inputs.inputs["taints"] == [{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}]
    assert inputs.inputs["updateConfig"] == {"maxUnavailable": 1}
    assert inputs.inputs["nodeRepairConfig"] == {"enabled": True, "maxParallelNodesRepairedCount": 1}


def test_no_node_starts_before_its_role_has_its_policies() -> None:
    graph = built()

    attachments = {a.urn for a in graph.of_type("aws:iam/rolePolicyAttachment:RolePolicyAttachment")}
    assert attachments <= set(graph.one(NODE_GROUP).dependencies)


def test_the_group_follows_the_newest_template() -> None:
    updated, previewed = built(), built(True)

    assert updated.one(NODE_GROUP).inputs["launchTemplate"] == {"id": "lt-0a1b2c3d4e5f60789", "version": "1"}
    assert previewed.one(NODE_GROUP).inputs["launchTemplate"] == {"id": UNKNOWN, "version": UNKNOWN}


def test_spot_and_on_demand_are_written_as_eks_writes_them() -> None:
    assert built().one(NODE_GROUP).inputs["capacityType"] == "ON_DEMAND"
    assert built(capacity_type=CapacityType.SPOT).one(NODE_GROUP).inputs["capacityType"] == "SPOT"


def test_a_partition_reaches_every_arn_and_principal() -> None:
    graph = built(partition="aws-cn")

    trust = json.loads(graph.one("aws:iam/role:Role").inputs["assumeRolePolicy"])
    arns = [a.inputs["policyArn"] for a in graph.of_type("aws:iam/rolePolicyAttachment:RolePolicyAttachment")]
    assert trust["Statement"][0]["Principal"] == {"Service": "ec2.amazonaws.com.cn"}
    assert all(arn.startswith("arn:aws-cn:iam::aws:policy/") for arn in arns)


def test_every_refusal_comes_at_once_and_by_property() -> None:
    reasons = refused(instance_type="g5g.xlarge", ami_type="AL2_x86_64_GPU", max_nodes=0, root_volume_gib=1)

    assert set(reasons) == {"instance_type", "ami_type", "max_nodes", "root_volume_gib"}
    assert "no NVMe" in reasons["instance_type"]


def test_an_own_image_without_the_cluster_is_refused() -> None:
    reasons = refused(ami_id=OWN_IMAGE["ami_id"], ami_type="AL2023_x86_64_NVIDIA")

    assert set(reasons) == {
        "ami_type",
        "cluster_endpoint",
        "cluster_certificate_authority",
        "cluster_service_cidr",
    }


def test_it_works_when_hosted_for_another_language() -> None:
    hosted: Any = {**BASE, "max_nodes": 4.0, "operating_system": "bottlerocket", "capacity_type": "spot"}

    inputs = run(lambda: GpuNodeGroup("l4", hosted)).one(NODE_GROUP).inputs

    assert inputs["scalingConfig"]["maxSize"] == 4
    assert (inputs["amiType"], inputs["capacityType"]) == ("BOTTLEROCKET_x86_64_NVIDIA", "SPOT")
