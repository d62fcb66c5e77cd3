"""What every node group of ours has: a role without access to data, and a launch template with the usual doors shut."""

import json
from collections.abc import Mapping, Sequence

import pulumi
import pulumi_aws as aws

from eks_gpu_serving.identity_documents import ec2_trust_document

# What a node needs to join, to give pods addresses, to pull images and to be reached without SSH. No S3: models are
# read with the pods' own role, never the node's.
_NODE_POLICIES = {
    "worker": "AmazonEKSWorkerNodePolicy",
    "cni": "AmazonEKS_CNI_Policy",
    "registry": "AmazonEC2ContainerRegistryPullOnly",
    "ssm": "AmazonSSMManagedInstanceCore",
}


def node_role(
    name: str, *, partition: str, tags: Mapping[str, str], parent: pulumi.Resource
) -> tuple[aws.iam.Role, list[pulumi.Resource]]:
    """The nodes' role, and what a node group has to wait for: without its policies a node can't join."""
    role = aws.iam.Role(
        f"{name}-node-role",
        assume_role_policy=json.dumps(ec2_trust_document(partition)),
        tags=tags,
        opts=pulumi.ResourceOptions(parent=parent),
    )
    attachments: list[pulumi.Resource] = [
        aws.iam.RolePolicyAttachment(
            f"{name}-node-{suffix}",
            role=role.name,
            policy_arn=f"arn:{partition}:iam::aws:policy/{policy}",
            opts=pulumi.ResourceOptions(parent=parent),
        )
        for suffix, policy in _NODE_POLICIES.items()
    ]
    return role, attachments


def launch_template(
    name: str,
    *,
    volumes: Sequence[aws.ec2.LaunchTemplateBlockDeviceMappingArgs],
    tags: Mapping[str, str],
    parent: pulumi.Resource,
    user_data: pulumi.Input[str] | None = None,
    image_id: str | None = None,
) -> aws.ec2.LaunchTemplate:
    """A launch template with IMDSv2 and one hop: a pod without a role of its own finds no credentials, rather than the
    node's. Instance type and AMI type stay with the node group. ``user_data`` is base64."""
    return aws.ec2.LaunchTemplate(
        f"{name}-template",
        image_id=image_id,
        user_data=user_data,
        metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(
            http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
        ),
        block_device_mappings=volumes,
        # Tags of a node group do not reach its instances and volumes.
        tag_specifications=[
            aws.ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=tags) for kind in ("instance", "volume")
        ],
        update_default_version=True,
        tags=tags,
        opts=pulumi.ResourceOptions(parent=parent),
    )


def latest_version(template: aws.ec2.LaunchTemplate) -> aws.eks.NodeGroupLaunchTemplateArgs:
    """The reference that a node group follows: a changed template is a rolling update of the nodes."""
    return aws.eks.NodeGroupLaunchTemplateArgs(
        id=template.id, version=template.latest_version.apply(lambda version: f"{version:.0f}")
    )


def encrypted_volume(
    device_name: str,
    *,
    size_gib: int | None = None,
    iops: int | None = None,
    throughput_mibps: int | None = None,
    kms_key_id: pulumi.Input[str] | None = None,
) -> aws.ec2.LaunchTemplateBlockDeviceMappingArgs:
    """An encrypted gp3 volume; without a size it has that of the image."""
    ebs = aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
        volume_type="gp3",
        volume_size=size_gib,
        iops=iops,
        throughput=throughput_mibps,
        encrypted="true",
        kms_key_id=kms_key_id,
        delete_on_termination="true",
    )
    return aws.ec2.LaunchTemplateBlockDeviceMappingArgs(device_name=device_name, ebs=ebs)
