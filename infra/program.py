"""One environment: the AWS provider of its region and one GpuServingStack."""

import pulumi
import pulumi_aws as aws

from eks_gpu_serving.settings import StackSettings
from eks_gpu_serving.stack import GpuServingStack, GpuServingStackArgs
from infra import config
from ray_model_serving.contract.problems import SettingsError


def main() -> None:
    """Create the stack. A refusal ends the run with every reason and no stack trace."""
    mapping = config.load()
    try:
        settings = StackSettings.from_mapping(mapping, source=f"Pulumi.{pulumi.get_stack()}.yaml")
        # Explicit, so that the region is the stack's and never that of somebody's shell.
        provider = aws.Provider("aws", region=settings.region)
        stack = GpuServingStack(
            settings.service_name, GpuServingStackArgs(**mapping), pulumi.ResourceOptions(providers=[provider])
        )
    except (SettingsError, pulumi.InputPropertiesError) as error:
        raise pulumi.RunError(str(error)) from None

    pulumi.export("cluster_name", stack.cluster_name)
    pulumi.export("service_name", stack.service_name)
    pulumi.export("namespace", stack.namespace)
    pulumi.export("model_role_arn", stack.model_role_arn)
    pulumi.export("kubeconfig", stack.kubeconfig)
