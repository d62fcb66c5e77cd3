"""One environment as one component: cluster, GPU pools, model access, operator and the Ray Serve application."""

import pulumi
import pulumi_kubernetes as kubernetes

from eks_gpu_serving.accelerators import NvidiaDevicePlugin, NvidiaDevicePluginArgs
from eks_gpu_serving.cluster import ServingCluster, ServingClusterArgs
from eks_gpu_serving.device_plugin_values import needs_device_plugin
from eks_gpu_serving.identity import ModelAccessRole, ModelAccessRoleArgs
from eks_gpu_serving.identity_documents import partition_of
from eks_gpu_serving.kuberay import KubeRayOperator, KubeRayOperatorArgs
from eks_gpu_serving.nodes.gpu_node_group import GpuNodeGroup, GpuNodeGroupArgs
from eks_gpu_serving.planning.capacity import PoolPlan
from eks_gpu_serving.planning.plan import plan
from eks_gpu_serving.ray_service.names import worker_account
from eks_gpu_serving.ray_service.ray_model_service import RayModelService, RayModelServiceArgs
from eks_gpu_serving.settings import NodeGroupSettings, StackSettings
from eks_gpu_serving.stack_args import GpuServingStackArgs, as_mapping, problems_as_properties, stack_settings
from eks_gpu_serving.tokens import token


class GpuServingStack(pulumi.ComponentResource):
    """A GPU serving stack on EKS. It is planned first: settings that can't work are refused, every reason at once.

    Creates:

    - an EKS cluster with system nodes, or finds an existing one (ServingCluster), and a Kubernetes provider for it;
    - a GPU node group per pool (GpuNodeGroup), and NVIDIA's device plugin where the nodes' image has none;
    - the role that reads the models (ModelAccessRole);
    - the KubeRay operator (KubeRayOperator) and the Ray Serve application (RayModelService).

    Does not:

    - create a VPC, a bucket or an image;
    - scale node groups: they start with what the least replicas need.

    When it is destroyed, the application goes before the operator, and both before the nodes.
    """

    cluster_name: pulumi.Output[str]
    """Name of the EKS cluster."""
    service_name: pulumi.Output[str]
    """Name of the RayService; KubeRay's Service for requests is ``<service_name>-serve-svc``, port 8000."""
    namespace: pulumi.Output[str]
    """Kubernetes namespace of the RayService."""
    model_role_arn: pulumi.Output[str]
    """IAM role that the workers read models with."""
    kubeconfig: pulumi.Output[str]
    """Secret. JSON kubeconfig that gets a token from ``aws eks get-token``."""

    def __init__(self, name: str, args: GpuServingStackArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(token("GpuServingStack"), name, {}, opts)
        component = f"GpuServingStack {name!r}"
        given = as_mapping(args, component)
        settings = stack_settings(given, component)
        with problems_as_properties(component):
            capacity = plan(settings)
        tags = {"stack": settings.service_name, "environment": settings.environment.value, **settings.tags}

        cluster = ServingCluster(f"{name}-cluster", _cluster_args(settings, tags), pulumi.ResourceOptions(parent=self))

        # Made here and passed on, so that nothing lands in the cluster of somebody's shell.
        provider = kubernetes.Provider(
            f"{name}-kubernetes",
            kubeconfig=cluster.kubeconfig,
            # A new model version changes the prefetch ConfigMap in place, and never the pods that mount it.
            enable_config_map_mutable=True,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[cluster]),
        )

        groups = [
            GpuNodeGroup(
                f"{name}-{pool.name}",
                _node_group_args(settings, pool, group, cluster, tags),
                pulumi.ResourceOptions(parent=self),
            )
            for pool, group in zip(capacity.pools, settings.node_groups, strict=True)
        ]

        def inside(*before: pulumi.Resource) -> pulumi.ResourceOptions:
            return pulumi.ResourceOptions(parent=self, providers=[provider], depends_on=[cluster, *before])

        plugins: list[pulumi.Resource] = []
        if needs_device_plugin(capacity.pools):
            plugins.append(NvidiaDevicePlugin(f"{name}-device-plugin", NvidiaDevicePluginArgs(), inside()))

        role = ModelAccessRole(
            f"{name}-models",
            ModelAccessRoleArgs(
                model_uris=settings.model_uris,
                namespace=settings.ray.namespace,
                service_account=worker_account(settings),
                oidc_issuer=cluster.oidc_issuer,
                oidc_provider_arn=cluster.oidc_provider_arn,
                kms_key_arns=settings.models_kms_key_arns,
                region=settings.region,
                tags=tags,
            ),
            pulumi.ResourceOptions(parent=self),
        )

        operator = KubeRayOperator(
            f"{name}-kuberay",
            KubeRayOperatorArgs(
                watch_namespace=settings.ray.namespace,
                chart_version=settings.kuberay.chart_version,
                namespace=settings.kuberay.namespace,
                crd_source=settings.kuberay.crd_source,
            ),
            inside(),
        )

        service = RayModelService(
            f"{name}-ray",
            RayModelServiceArgs(**given, model_role_arn=role.role_arn),
            # The role with its policy, too: pods that start without it would only fail.
            inside(operator, role, *groups, *plugins),
        )

        self.cluster_name = cluster.cluster_name
        self.service_name = service.service_name
        self.namespace = service.namespace
        self.model_role_arn = role.role_arn
        self.kubeconfig = cluster.kubeconfig
        self.register_outputs(
            {
                "cluster_name": self.cluster_name,
                "service_name": self.service_name,
                "namespace": self.namespace,
                "model_role_arn": self.model_role_arn,
                "kubeconfig": self.kubeconfig,
            }
        )


def _cluster_args(settings: StackSettings, tags: dict[str, str]) -> ServingClusterArgs:
    cluster = settings.cluster
    return ServingClusterArgs(
        region=settings.region,
        existing_name=cluster.existing_name,
        kubernetes_version=cluster.kubernetes_version,
        vpc_id=cluster.vpc_id,
        private_subnet_ids=cluster.private_subnet_ids or None,
        enable_public_endpoint=cluster.endpoint_public_access,
        public_access_cidrs=cluster.public_access_cidrs,
        system_instance_type=cluster.system_instance_type,
        system_nodes=cluster.system_nodes,
        tags=tags,
    )


def _node_group_args(
    settings: StackSettings, pool: PoolPlan, group: NodeGroupSettings, cluster: ServingCluster, tags: dict[str, str]
) -> GpuNodeGroupArgs:
    return GpuNodeGroupArgs(
        cluster_name=cluster.cluster_name,
        subnet_ids=cluster.subnet_ids,
        instance_type=pool.instance.name,
        operating_system=pool.operating_system,
        pool=pool.name,
        min_nodes=pool.min_nodes,
        max_nodes=pool.max_nodes,
        desired_nodes=pool.nodes_at_rest,
        capacity_type=group.capacity_type,
        ami_release_version=group.ami_release_version,
        ami_id=group.ami_id,
        cluster_endpoint=cluster.endpoint,
        cluster_certificate_authority=cluster.certificate_authority,
        cluster_service_cidr=cluster.service_cidr,
        root_volume_gib=group.root_volume_gib,
        partition=partition_of(settings.region),
        tags=tags,
    )
