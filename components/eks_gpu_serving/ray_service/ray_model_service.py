"""The Ray Serve application of a stack on Kubernetes: namespace, accounts, prefetch list and RayService.

Takes what GpuServingStack takes, since every size in the manifest comes from the plan of the whole stack.
"""

from collections.abc import Awaitable
from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as kubernetes

from eks_gpu_serving.args import input_error
from eks_gpu_serving.planning.plan import plan
from eks_gpu_serving.ray_service import manifest, objects
from eks_gpu_serving.ray_service.serve_config import serve_config
from eks_gpu_serving.stack_args import GpuServingStackArgs, as_mapping, problems_as_properties, stack_settings
from eks_gpu_serving.tokens import token
from ray_model_serving.contract.problems import show


@dataclass(frozen=True, kw_only=True)
class RayModelServiceArgs(GpuServingStackArgs):
    """The keys of ``Pulumi.<env>.yaml``, and the identity of the workers."""

    model_role_arn: pulumi.Input[str] | None = None
    """IAM role that may read the models; workers refuse to start under another one. None: no model is in S3"""


class RayModelService(pulumi.ComponentResource):
    """Serves the models of a stack with Ray Serve on a cluster that has the KubeRay operator and the GPU pools.

    Creates:

    - a namespace, the service accounts of head and workers, the prefetch list of each pool in one ConfigMap;
    - the RayService. An update is done once it is Ready, or fails when its time is up.

    Does not:

    - create nodes, the operator or the IAM role;
    - choose a cluster: pass it as a Kubernetes provider in ``opts``, with ``enable_config_map_mutable`` so that a new
      model version changes the ConfigMap in place.
    """

    service_name: pulumi.Output[str]
    """Name of the RayService; KubeRay's Service for requests is ``<service_name>-serve-svc``, port 8000."""
    namespace: pulumi.Output[str]
    """Namespace of the RayService."""

    def __init__(self, name: str, args: RayModelServiceArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(token("RayModelService"), name, None, opts)
        component = f"RayModelService {name!r}"
        given = as_mapping(args, component)
        role_arn: pulumi.Input[str] | None = given.pop("model_role_arn", None)
        if not isinstance(role_arn, pulumi.Output | Awaitable | None) and not str(role_arn).startswith("arn:"):
            raise input_error(component, [("model_role_arn", f"got {show(role_arn)}, must be the ARN of a role")])
        settings = stack_settings(given, component)
        with problems_as_properties(component):
            capacity = plan(settings)

        namespace = kubernetes.core.v1.Namespace(
            f"{name}-namespace",
            metadata=objects.namespace(settings)["metadata"],
            opts=pulumi.ResourceOptions(parent=self),
        )
        inside = pulumi.ResourceOptions(parent=self, depends_on=[namespace])

        head_account = kubernetes.core.v1.ServiceAccount(
            f"{name}-head",
            metadata=objects.head_service_account(settings)["metadata"],
            opts=inside,
        )
        worker_account = kubernetes.core.v1.ServiceAccount(
            f"{name}-worker",
            metadata=objects.worker_service_account(settings, role_arn)["metadata"],
            opts=inside,
        )

        prefetch = objects.prefetch_config_map(settings, capacity)
        prefetch_list = kubernetes.core.v1.ConfigMap(
            f"{name}-prefetch",
            metadata=prefetch["metadata"],
            data=prefetch["data"],
            opts=inside,
        )

        def render(arn: str | None) -> str:
            return serve_config(settings, capacity, model_role_arn=arn)

        config = render(None) if role_arn is None else pulumi.Output.from_input(role_arn).apply(render)
        service = manifest.ray_service(settings, capacity, config)
        kubernetes.apiextensions.CustomResource(
            f"{name}-service",
            api_version=service["apiVersion"],
            kind=service["kind"],
            metadata=service["metadata"],
            spec=service["spec"],
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=[namespace, head_account, worker_account, prefetch_list]
            ),
        )

        self.service_name = pulumi.Output.from_input(settings.service_name)
        self.namespace = pulumi.Output.from_input(settings.ray.namespace)
        self.register_outputs({"service_name": self.service_name, "namespace": self.namespace})
