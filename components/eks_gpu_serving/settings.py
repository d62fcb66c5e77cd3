"""StackSettings: one environment's stack file, validated as a whole before anything is planned or created.

Sizes are GiB (``_gib``) here and bytes everywhere else. ``Pulumi.<env>.yaml`` and ``GpuServingStackArgs`` have the same
keys.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from eks_gpu_serving import name_limits
from eks_gpu_serving.name_limits import name_problem
from eks_gpu_serving.nodes.checks import MAX_NODES, image_problems
from eks_gpu_serving.nodes.names import OperatingSystem
from eks_gpu_serving.planning.instances import instance_problem
from eks_gpu_serving.planning.system_nodes import SYSTEM_INSTANCES
from ray_model_serving.contract.problems import Problems, SettingsError, nearest
from ray_model_serving.contract.reading import read, setting
from ray_model_serving.contract.settings import NAME_PATTERN, LoadMode, ModelDescription, check_unique

# The Ray version that the serving library, the image and the cluster share (a mixed set fails at run time).
RAY_VERSION = "2.60.0"
# https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html (read 2026-11): in standard support.
KUBERNETES_VERSIONS = ("1.34", "1.35", "1.36")


class Environment(str, Enum):
    """Decides defaults and what is demanded: production wants pinned models and no scale to zero."""

    DEV = "dev"
    STAGING = "staging"
    PROD = "prod"


class CapacityType(str, Enum):
    """How EC2 sells the nodes of a pool."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"


class Upgrade(str, Enum):
    """What a changed cluster specification does: a second cluster beside the first, or nothing until it is deleted."""

    NEW_CLUSTER = "new_cluster"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """A new EKS cluster, or an existing one by name."""

    existing_name: str | None = setting(None, doc="name of an existing EKS cluster; none: a new one", pattern=r".+")
    kubernetes_version: str = setting(
        "1.35",
        doc="version of a new cluster, quoted",
        pattern=r"1\.\d+",
        reason="quote it, YAML reads 1.35 as a number",
    )
    vpc_id: str | None = setting(None, doc="VPC of a new cluster; none: the account's default VPC", pattern=r"vpc-.+")
    private_subnet_ids: tuple[str, ...] = setting((), doc="subnets of nodes; none: the cluster's own")
    endpoint_public_access: bool = setting(True, doc="whether a new cluster's API is reachable from the internet")
    system_instance_type: str = setting("m7i.xlarge", doc="instance type of nodes for the head and the operator")
    system_nodes: int = setting(2, doc="number of such nodes in a new cluster", minimum=1, maximum=20)

    def check(self, path: str, problems: Problems) -> None:
        if self.kubernetes_version not in KUBERNETES_VERSIONS:
            problems.add(
                f"{path}.kubernetes_version",
                f"got {self.kubernetes_version!r}, supported: {', '.join(KUBERNETES_VERSIONS)}",
            )
        if self.system_instance_type not in SYSTEM_INSTANCES:
            problems.add(
                f"{path}.system_instance_type",
                f"got {self.system_instance_type!r}; {nearest(self.system_instance_type, SYSTEM_INSTANCES)}",
            )
        if self.vpc_id and not self.private_subnet_ids:
            problems.add(f"{path}.private_subnet_ids", "is empty, a given vpc_id needs the subnets of its nodes")


@dataclass(frozen=True, kw_only=True)
class NodeGroupSettings:
    """One GPU node group with a model cache on its NVMe instance store."""

    name: str = setting(doc="unique name of the pool", pattern=NAME_PATTERN)
    instance_type: str = setting(doc="a GPU instance type with NVMe, such as g6.xlarge", check=instance_problem)
    operating_system: OperatingSystem = setting(OperatingSystem.AL2023, doc="al2023 or bottlerocket, NVIDIA variant")
    min_nodes: int = setting(0, doc="least nodes", minimum=0, maximum=MAX_NODES)
    max_nodes: int = setting(doc="most nodes", minimum=1, maximum=MAX_NODES)
    capacity_type: CapacityType = setting(CapacityType.ON_DEMAND, doc="on_demand or spot")
    ami_release_version: str | None = setting(
        None, doc="EKS AMI release to pin, such as 1.35.0-20260520", pattern=r"\d+\.\d+\.\d+(-[\w.]+)?"
    )
    ami_id: str | None = setting(
        None, doc="an image of your own; excludes ami_release_version", pattern=r"ami-[0-9a-f]+"
    )
    root_volume_gib: int = setting(100, doc="size of the encrypted gp3 root volume", minimum=20, maximum=16_384)
    cache_budget_gib: float | None = setting(None, doc="most of the NVMe that the model cache may hold", above=0)
    pod_memory_gib: float | None = setting(None, doc="memory limit of a worker pod; none: its share of a node", above=0)

    def check(self, path: str, problems: Problems) -> None:
        if self.min_nodes > self.max_nodes:
            problems.add(f"{path}.min_nodes", f"got {self.min_nodes}, must be at most max_nodes {self.max_nodes}")
        found = image_problems(
            instance_type=self.instance_type,
            operating_system=self.operating_system,
            ami_id=self.ami_id,
            ami_release_version=self.ami_release_version,
        )
        for name, reason in found:
            problems.add(f"{path}.{name}", reason)


@dataclass(frozen=True, kw_only=True)
class StackModel(ModelDescription):
    """One model, as a model engineer describes it. Sizes that are left out follow from those of the weights."""

    node_group: str | None = setting(None, doc="pool that it runs on; may be left out where there is one")
    load_mode: LoadMode | None = setting(None, doc="lazy or background; none: lazy in dev, background elsewhere")
    weights_gib: float = setting(doc="size of the model's files; `ray-model inspect` prints it", above=0, maximum=4096)
    host_peak_gib: float | None = setting(
        None, doc="anonymous host memory at the peak of a load", above=0, maximum=4096
    )
    gpu_gib: float | None = setting(None, doc="device memory of weights and activations", above=0, maximum=4096)
    request_gib: float = setting(1 / 64, doc="host memory of one ongoing request", minimum=0, maximum=64)
    num_gpus: float = setting(1.0, doc="GPUs of one replica; a fraction shares one GPU", minimum=0, maximum=16)


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """The RayService: image, version, namespace, head and upgrades."""

    image: str = setting(doc="serving image; its tag names the Ray version", pattern=r"\S+")
    version: str = setting(RAY_VERSION, doc="Ray version of the image", pattern=r"\d+\.\d+\.\d+")
    namespace: str = setting("ray-serving", doc="Kubernetes namespace of the RayService", pattern=NAME_PATTERN)
    upgrade: Upgrade = setting(Upgrade.NEW_CLUSTER, doc="new_cluster or none")
    head_cpus: int = setting(2, doc="CPUs of the head pod", minimum=1, maximum=64)
    head_memory_gib: float = setting(
        8.0, doc="memory of the head pod", minimum=4, maximum=512, reason="GCS, dashboard and Serve controller need it"
    )

    def check(self, path: str, problems: Problems) -> None:
        if self.version != RAY_VERSION:
            problems.add(f"{path}.version", f"got {self.version!r}, this package is built for Ray {RAY_VERSION}")
        tag = self.image.partition("@")[0].rpartition("/")[2].partition(":")[2]
        if not tag or tag == "latest":
            problems.add(f"{path}.image", f"got {self.image!r}, needs a fixed tag (never latest)")
        elif not re.search(rf"(?<![\d.]){re.escape(self.version)}(?![\d.])", tag):
            problems.add(
                f"{path}.image",
                f"got {self.image!r}, the tag must contain the Ray version {self.version}; an image with another "
                "version fails when it joins the cluster",
            )


@dataclass(frozen=True, kw_only=True)
class KubeRaySettings:
    """The operator."""

    chart_version: str = setting(
        "1.6.2", doc="version of the kuberay-operator chart and of its CRDs", pattern=r"1\.[67]\.\d+"
    )
    namespace: str = setting("kuberay-system", doc="Kubernetes namespace of the operator", pattern=NAME_PATTERN)


@dataclass(frozen=True, kw_only=True)
class StackSettings:
    """One environment."""

    environment: Environment = setting(doc="dev, staging or prod")
    name: str = setting("gpu-serving", doc="prefix of every resource name", pattern=NAME_PATTERN)
    region: str = setting(doc="AWS region, such as us-east-1", pattern=r"[a-z]{2}(-[a-z]+)+-\d")
    tags: Mapping[str, str] = setting(dict, doc="tags of every AWS resource, beside the stack's own")
    cluster: ClusterSettings = setting(ClusterSettings, doc="a new or an existing EKS cluster")
    node_groups: tuple[NodeGroupSettings, ...] = setting(doc="the GPU pools", min_items=1)
    models: tuple[StackModel, ...] = setting(doc="the models to serve", min_items=1)
    ray: RaySettings = setting(doc="image, version and upgrades of the RayService")
    kuberay: KubeRaySettings = setting(KubeRaySettings, doc="the operator")

    @classmethod
    def from_mapping(cls, given: object, *, source: str = "stack settings") -> "StackSettings":
        """Validate everything. Raises :class:`SettingsError` with every problem at once."""
        problems = Problems(source)
        settings = read(cls, given, "", problems)
        if settings is None or problems:
            raise SettingsError(problems.found, source=source)
        return settings

    @property
    def service_name(self) -> str:
        """Name of the RayService and prefix of what belongs to it."""
        return f"{self.name}-{self.environment.value}"

    def pool_of(self, model: StackModel) -> str:
        """The node group that a model runs on."""
        return model.node_group or self.node_groups[0].name

    def check(self, path: str, problems: Problems) -> None:
        check_unique([group.name for group in self.node_groups], f"{path}node_groups", "name", problems)
        check_unique([model.name for model in self.models], f"{path}models", "name", problems)
        check_unique([model.route for model in self.models], f"{path}models", "route", problems)
        self._check_names(problems)
        for index, model in enumerate(self.models):
            self._check_model(model, f"models[{index}]", problems)

    def _check_names(self, problems: Problems) -> None:
        made = {"cluster": name_limits.CLUSTER, **{group.name: name_limits.NODE_GROUP for group in self.node_groups}}
        for part, longest in made.items():
            too_long = name_problem(f"{self.service_name}-{part}", longest)
            if too_long:
                problems.add("name", f"{too_long}; shorten name (or the pool's)")

    def _check_model(self, model: StackModel, path: str, problems: Problems) -> None:
        pools = [group.name for group in self.node_groups]
        if model.node_group is None and len(pools) > 1:
            problems.add(f"{path}.node_group", f"is required where there are several pools: {', '.join(pools)}")
        if model.node_group is not None and model.node_group not in pools:
            problems.add(
                f"{path}.node_group", f"got {model.node_group!r}, no such pool; {nearest(model.node_group, pools)}"
            )
        if self.environment is not Environment.PROD:
            return
        if model.snapshot_id is None and model.uri.startswith("s3://"):
            problems.add(f"{path}.snapshot_id", "is required in prod: `ray-model inspect` prints it")
        if model.min_replicas == 0:
            problems.add(
                f"{path}.min_replicas", "got 0, prod does not scale to zero: the first caller would wait minutes"
            )
