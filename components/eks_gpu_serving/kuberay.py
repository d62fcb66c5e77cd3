"""The KubeRay operator from its Helm chart, and its custom resource definitions apart from it.

Helm installs what lies in a chart's ``crds/`` once and never upgrades it, so that a newer operator would write fields
that the cluster drops. Here the definitions are resources of their own, of the chart's version.
"""

import dataclasses
from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as kubernetes

from eks_gpu_serving.args import input_error, read_args
from eks_gpu_serving.kuberay_values import CHART, CHART_REPOSITORY, crd_files, kuberay_values
from eks_gpu_serving.kubernetes_rules import OBJECT_NAME
from eks_gpu_serving.settings import KubeRaySettings
from eks_gpu_serving.stack_args import problems_as_properties
from eks_gpu_serving.tokens import token
from ray_model_serving.contract.problems import Problems
from ray_model_serving.contract.reading import read


@dataclass(frozen=True, kw_only=True)
class KubeRayOperatorArgs:
    """An operator for the RayServices of one namespace."""

    watch_namespace: str
    """namespace whose RayServices the operator looks after"""
    chart_version: str | None = None
    """version of the kuberay-operator chart and of its definitions, 1.6 or 1.7; default 1.6.2"""
    namespace: str | None = None
    """namespace of the operator, created here; default kuberay-system"""
    crd_source: str | None = None
    """directory or URL that has the definitions of that version; default: the tag of the KubeRay repository"""


class KubeRayOperator(pulumi.ComponentResource):
    """Installs KubeRay.

    Creates:

    - the operator's namespace and its Helm release, of one version;
    - the custom resource definitions of that version. They stay when the stack is destroyed: deleting one deletes every
      object of its kind in the cluster, also those of others.

    Does not:

    - create a RayService. What has one must depend on this component, so that it is deleted while the operator still
      runs; without it a RayService hangs on its finalizer.
    """

    namespace: pulumi.Output[str]
    """Namespace of the operator."""

    def __init__(self, name: str, args: KubeRayOperatorArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(token("KubeRayOperator"), name, None, opts)
        args = read_args(KubeRayOperatorArgs, args, f"KubeRayOperator {name!r}")
        if not OBJECT_NAME.fullmatch(args.watch_namespace):
            reason = f"got {args.watch_namespace!r}, must be the exact name of one namespace"
            raise input_error(f"KubeRayOperator {name!r}", [("watch_namespace", reason)])
        kuberay = _settings(args, f"KubeRayOperator {name!r}")

        namespace = kubernetes.core.v1.Namespace(
            f"{name}-namespace",
            metadata={"name": kuberay.namespace},
            opts=pulumi.ResourceOptions(parent=self),
        )

        definitions = kubernetes.yaml.v2.ConfigGroup(
            f"{name}-crds",
            files=crd_files(kuberay),
            opts=pulumi.ResourceOptions(parent=self, retain_on_delete=True),
        )

        kubernetes.helm.v3.Release(
            f"{name}-release",
            name=CHART,
            chart=CHART,
            version=kuberay.chart_version,
            repository_opts={"repo": CHART_REPOSITORY},
            namespace=kuberay.namespace,
            skip_crds=True,
            values=kuberay_values(kuberay, args.watch_namespace),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[namespace, definitions]),
        )

        self.namespace = pulumi.Output.from_input(kuberay.namespace)
        self.register_outputs({"namespace": self.namespace})


def _settings(args: KubeRayOperatorArgs, component: str) -> KubeRaySettings:
    names = {field.name for field in dataclasses.fields(KubeRaySettings)}
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    problems = Problems()
    settings = read(KubeRaySettings, given, "", problems)
    with problems_as_properties(component):
        problems.raise_if_any()
    assert settings is not None  # read() returns None only after it reported a problem
    return settings
