"""The parts of a stack file around its models: cluster, GPU pools, Ray and its operator."""

import dataclasses
import re
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from eks_gpu_serving import aws_rules
from eks_gpu_serving.kubernetes_rules import image_problem, image_tag, namespace_problem
from eks_gpu_serving.nodes.checks import image_problems
from eks_gpu_serving.nodes.names import OperatingSystem
from eks_gpu_serving.planning.instances import instance_problem
from eks_gpu_serving.planning.system_nodes import MAX_SYSTEM_NODES, system_instance_problem
from ray_model_serving.contract.problems import Problems
from ray_model_serving.contract.reading import UnreadableError, at, setting
from ray_model_serving.contract.settings import LOAD_TIMES_BEFORE_DOWNSCALE, NAME_PATTERN, Autoscaling

# The Ray version that the serving library, the image and the cluster share (a mixed set fails at run time).
RAY_VERSION = "2.60.0"
# Above what any machine has; it keeps a size with too many digits out of every later computation.
MAX_GIB = 65_536
# Ray Serve's own default, and the least where nobody says otherwise.
_DOWNSCALE_DELAY_S = 600.0
_MAX_DOWNSCALE_DELAY_S = 86_400


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
    """A new EKS cluster, or an existing one by name. What describes a new one is None where it is left out, so that it
    is refused beside an existing one; ServingCluster has the defaults."""

    existing_name: str | None = setting(
        None, doc="name of an existing EKS cluster; none: a new one", pattern=aws_rules.CLUSTER_NAME
    )
    kubernetes_version: str | None = setting(
        None, doc="version of a new cluster, quoted; none: 1.35", check=aws_rules.kubernetes_version_problem
    )
    vpc_id: str | None = setting(
        None, doc="VPC of a new cluster; none: the account's default VPC", pattern=aws_rules.VPC_ID
    )
    private_subnet_ids: tuple[str, ...] = setting(
        (), doc="subnets of nodes; none: the cluster's own", pattern=aws_rules.SUBNET_ID
    )
    endpoint_public_access: bool | None = setting(
        None, doc="whether a new cluster's API is reachable from the internet; none: true"
    )
    public_access_cidrs: tuple[str, ...] | None = setting(
        None, doc="ranges that may reach it there; none: everyone, with credentials", check=aws_rules.cidr_problem
    )
    system_instance_type: str | None = setting(
        None,
        doc="instance type of nodes for the head and the operator; none: m7i.xlarge",
        check=system_instance_problem,
    )
    system_nodes: int | None = setting(
        None, doc="number of such nodes in a new cluster; none: 2", minimum=1, maximum=MAX_SYSTEM_NODES
    )

    def check(self, path: str, problems: Problems) -> None:
        of_new = ("kubernetes_version", "vpc_id", "endpoint_public_access", "public_access_cidrs")
        of_new += ("system_instance_type", "system_nodes")
        found = aws_rules.cluster_problems(
            existing_name=self.existing_name,
            of_new={name: getattr(self, name) for name in of_new},
            vpc_given=self.vpc_id is not None,
            subnets_given=bool(self.private_subnet_ids),
            public_endpoint=self.endpoint_public_access,
            public_access_cidrs=self.public_access_cidrs,
        )
        for name, reason in found:
            problems.add(at(path, name), reason)


@dataclass(frozen=True, kw_only=True)
class NodeGroupSettings:
    """One GPU node group with a model cache on its NVMe instance store."""

    name: str = setting(doc="unique name of the pool", pattern=NAME_PATTERN)
    instance_type: str = setting(doc="a GPU instance type with NVMe, such as g6.xlarge", check=instance_problem)
    operating_system: OperatingSystem = setting(OperatingSystem.AL2023, doc="al2023 or bottlerocket, NVIDIA variant")
    min_nodes: int = setting(0, doc="least nodes", minimum=0, maximum=aws_rules.MAX_NODES)
    max_nodes: int = setting(doc="most nodes", minimum=1, maximum=aws_rules.MAX_NODES)
    capacity_type: CapacityType = setting(CapacityType.ON_DEMAND, doc="on_demand or spot")
    ami_release_version: str | None = setting(
        None, doc="EKS AMI release to pin, such as 1.35.0-20260520", pattern=r"\d+\.\d+\.\d+(-[\w.]+)?"
    )
    ami_id: str | None = setting(
        None, doc="an image of your own; excludes ami_release_version", pattern=aws_rules.AMI_ID
    )
    root_volume_gib: int = setting(
        100,
        doc="size of the encrypted gp3 root volume",
        minimum=aws_rules.MIN_ROOT_VOLUME_GIB,
        maximum=aws_rules.MAX_ROOT_VOLUME_GIB,
    )
    cache_budget_gib: float | None = setting(
        None, doc="most of the NVMe that the model cache may hold", above=0, maximum=MAX_GIB
    )
    pod_memory_gib: float | None = setting(
        None, doc="memory limit of a worker pod; none: its share of a node", above=0, maximum=MAX_GIB
    )

    def check(self, path: str, problems: Problems) -> None:
        with suppress(UnreadableError):
            if self.min_nodes > self.max_nodes:
                problems.add(at(path, "min_nodes"), f"got {self.min_nodes}, must be at most max_nodes {self.max_nodes}")
        found = image_problems(
            instance_type=self.instance_type,
            operating_system=self.operating_system,
            ami_id=self.ami_id,
            ami_release_version=self.ami_release_version,
        )
        for name, reason in found:
            problems.add(at(path, name), reason)


@dataclass(frozen=True, kw_only=True)
class StackAutoscaling(Autoscaling):
    """How Serve moves between the replica bounds of a model. What is left out follows from how long a load takes."""

    # Wider than the application's, which knows every number.
    downscale_delay_s: float | None = setting(  # pyright: ignore[reportIncompatibleVariableOverride]
        None,
        doc="how long a surplus lasts before replicas go; none: 600 or twice load_time_s, whichever is longer",
        minimum=60,
        maximum=_MAX_DOWNSCALE_DELAY_S,
    )
    load_time_s: float | None = setting(
        None,
        doc="seconds until a new replica is ready, as measured; none: on a new node, as the plan expects",
        above=0,
        maximum=86_400,
    )

    def check(self, path: str, problems: Problems) -> None:
        self.resolved().check(path, problems)

    def resolved(self, load_time_s: float | None = None) -> Autoscaling:
        """As the application gets it; ``load_time_s`` is what a plan expects, for one who measured nothing."""
        known = {field.name: getattr(self, field.name) for field in dataclasses.fields(Autoscaling)}
        known["load_time_s"] = self.load_time_s or load_time_s
        if self.downscale_delay_s is None:
            enough_s = max(_DOWNSCALE_DELAY_S, LOAD_TIMES_BEFORE_DOWNSCALE * (known["load_time_s"] or 0))
            known["downscale_delay_s"] = min(enough_s, _MAX_DOWNSCALE_DELAY_S)
        return Autoscaling(**known)


@dataclass(frozen=True, kw_only=True)
class ApplicationSettings:
    """What all replicas and nodes of the Serve application keep to."""

    loads_at_once_per_node: int = setting(1, doc="loads to a device at once on a node", minimum=1, maximum=64)
    memory_guard_fraction: float = setting(
        0.85, doc="new work is refused while this part of the pod's memory is taken", minimum=0.3, maximum=0.94
    )
    rate_cap_mib_per_s: float | None = setting(
        None, doc="most that all downloads of a node take together; none: its whole network", minimum=1, maximum=MAX_GIB
    )
    trace_endpoint: str | None = setting(
        None, doc="where traces go, as OTLP over HTTP; none: nowhere", pattern=r"https?://.+"
    )


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """The RayService: image, version, namespace, head and upgrades."""

    image: str = setting(doc="serving image; its tag names the Ray version", check=image_problem)
    version: str = setting(RAY_VERSION, doc="Ray version of the image", pattern=re.escape(RAY_VERSION))
    namespace: str = setting(
        "ray-serving", doc="Kubernetes namespace of the RayService", pattern=NAME_PATTERN, check=namespace_problem
    )
    upgrade: Upgrade = setting(Upgrade.NEW_CLUSTER, doc="new_cluster or none")
    head_cpus: int = setting(2, doc="CPUs of the head pod", minimum=1, maximum=64)
    head_memory_gib: float = setting(
        8.0, doc="memory of the head pod", minimum=4, maximum=512, reason="GCS, dashboard and Serve controller need it"
    )

    def check(self, path: str, problems: Problems) -> None:
        tag = image_tag(self.image)
        if not tag or tag == "latest":
            problems.add(at(path, "image"), f"got {self.image!r}, needs a fixed tag (never latest)")
        elif not re.search(rf"(?<![\d.]){re.escape(RAY_VERSION)}(?![\d.])", tag):
            problems.add(
                at(path, "image"),
                f"got {self.image!r}, the tag must contain the Ray version {RAY_VERSION}; an image with another "
                "version fails when it joins the cluster",
            )


@dataclass(frozen=True, kw_only=True)
class KubeRaySettings:
    """The operator."""

    chart_version: str = setting(
        "1.6.2", doc="version of the kuberay-operator chart and of its CRDs", pattern=r"1\.[67]\.\d+"
    )
    namespace: str = setting(
        "kuberay-system", doc="Kubernetes namespace of the operator", pattern=NAME_PATTERN, check=namespace_problem
    )
    crd_source: str | None = setting(
        None, doc="directory or URL that has its CRDs; none: the tag of the KubeRay repository", pattern=r"\S+"
    )
