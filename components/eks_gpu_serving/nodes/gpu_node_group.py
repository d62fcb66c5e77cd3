"""A GPU node group whose NVMe instance store carries the model cache.

Our own launch template: pulumi-eks can't express encrypted gp3, IMDSv2 with one hop and NVMe user data together.
"""

import base64
from collections.abc import Mapping

import pulumi
import pulumi_aws as aws

from eks_gpu_serving.args import raise_problems, read_args
from eks_gpu_serving.nodes.gpu_node_group_args import (
    GpuNodeGroupArgs,
    desired_nodes,
    min_nodes,
    problems,
    root_volume_iops,
    root_volume_size_gib,
    root_volume_throughput_mibps,
    system,
)
from eks_gpu_serving.nodes.names import OperatingSystem
from eks_gpu_serving.nodes.operating_systems import OPERATING_SYSTEMS, OperatingSystemFacts, stock_ami_type
from eks_gpu_serving.nodes.parts import encrypted_volume, latest_version, launch_template, node_role
from eks_gpu_serving.nodes.user_data import POOL_TAINT, ClusterJoin, pool_labels, render_user_data
from eks_gpu_serving.planning.instances import instance_types
from eks_gpu_serving.settings import CapacityType
from eks_gpu_serving.tokens import token


class GpuNodeGroup(pulumi.ComponentResource):
    """A managed node group of one GPU instance type, with the instance store mounted for the model cache.

    Creates:

    - an IAM role for the nodes, without access to any bucket;
    - a launch template: user data for the instance store, IMDSv2 with one hop, encrypted gp3, tags;
    - a managed node group, tainted ``nvidia.com/gpu=true:NoSchedule``.

    Does not:

    - create an access entry: EKS makes one for a managed node group (authentication mode API or API_AND_CONFIG_MAP);
    - install a device plugin (AL2023 needs one, see NvidiaDevicePlugin) or an autoscaler;
    - protect anything: nodes are replaceable, models are not kept on them only.
    """

    node_group_name: pulumi.Output[str]
    """Physical name of the node group."""
    node_role_arn: pulumi.Output[str]
    """ARN of the nodes' role."""

    def __init__(self, name: str, args: GpuNodeGroupArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(token("GpuNodeGroup"), name, {}, opts)
        args = read_args(GpuNodeGroupArgs, args, f"GpuNodeGroup {name!r}")
        raise_problems(f"GpuNodeGroup {name!r}", problems(name, args))
        operating_system = system(args)
        tags = {**(args.tags or {}), "Name": name}
        labels = {**(args.labels or {}), **pool_labels(args.pool or name, operating_system)}

        self.node_role, policies = node_role(name, partition=args.partition or "aws", tags=tags, parent=self)

        self.launch_template = launch_template(
            name,
            image_id=args.ami_id,
            user_data=_user_data(args, operating_system, labels),
            volumes=_volumes(args, OPERATING_SYSTEMS[operating_system]),
            tags=tags,
            parent=self,
        )

        self.node_group = aws.eks.NodeGroup(
            f"{name}-nodes",
            cluster_name=args.cluster_name,
            node_role_arn=self.node_role.arn,
            subnet_ids=args.subnet_ids,
            instance_types=[args.instance_type],
            ami_type=_ami_type(args, operating_system),
            release_version=args.ami_release_version,
            capacity_type=(args.capacity_type or CapacityType.ON_DEMAND).name,
            launch_template=latest_version(self.launch_template),
            scaling_config=aws.eks.NodeGroupScalingConfigArgs(
                min_size=min_nodes(args), max_size=args.max_nodes, desired_size=desired_nodes(args)
            ),
            update_config=aws.eks.NodeGroupUpdateConfigArgs(max_unavailable=1),
            node_repair_config=aws.eks.NodeGroupNodeRepairConfigArgs(
                enabled=args.enable_node_repair is not False, max_parallel_nodes_repaired_count=1
            ),
            labels=labels,
            taints=[aws.eks.NodeGroupTaintArgs(key=POOL_TAINT.key, value=POOL_TAINT.value, effect="NO_SCHEDULE")],
            tags=tags,
            opts=pulumi.ResourceOptions(parent=self, depends_on=policies, ignore_changes=["scalingConfig.desiredSize"]),
        )

        self.node_group_name = self.node_group.node_group_name
        self.node_role_arn = self.node_role.arn
        self.register_outputs({"node_group_name": self.node_group_name, "node_role_arn": self.node_role_arn})


def _ami_type(args: GpuNodeGroupArgs, operating_system: OperatingSystem) -> str | None:
    if args.ami_id is not None:
        return None
    return args.ami_type or stock_ami_type(operating_system, instance_types()[args.instance_type])


def _volumes(args: GpuNodeGroupArgs, facts: OperatingSystemFacts) -> list[aws.ec2.LaunchTemplateBlockDeviceMappingArgs]:
    data = encrypted_volume(
        facts.data_device,
        size_gib=root_volume_size_gib(args),
        iops=root_volume_iops(args),
        throughput_mibps=root_volume_throughput_mibps(args),
        kms_key_id=args.kms_key_id,
    )
    if facts.root_device == facts.data_device:
        return [data]
    return [encrypted_volume(facts.root_device, kms_key_id=args.kms_key_id), data]


def _user_data(
    args: GpuNodeGroupArgs, operating_system: OperatingSystem, labels: Mapping[str, str]
) -> pulumi.Input[str]:
    """Base64, as EC2 wants it."""
    if args.ami_id is None:
        return _base64(render_user_data(operating_system))

    def render(values: Mapping[str, str]) -> str:
        return _base64(render_user_data(operating_system, ClusterJoin(**values, labels=labels, taints=(POOL_TAINT,))))

    return pulumi.Output.all(
        name=args.cluster_name,
        endpoint=args.cluster_endpoint,
        certificate_authority=args.cluster_certificate_authority,
        service_cidr=args.cluster_service_cidr,
    ).apply(render)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
