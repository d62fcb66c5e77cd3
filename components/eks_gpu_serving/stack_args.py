"""Arguments of GpuServingStack: the keys of a stack file, typed for callers in Python and in other languages.

The descriptions are those of ``StackSettings``, which has the defaults and all the rules; a test keeps the two equal.
Everything is plain, never an Output: the plan is made from it before anything is created.
"""

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, cast

from eks_gpu_serving.args import input_error, raise_problems
from eks_gpu_serving.nodes.names import OperatingSystem
from eks_gpu_serving.settings import CapacityType, Environment, StackSettings, Upgrade
from ray_model_serving.contract.problems import SettingsError, show
from ray_model_serving.contract.settings import Device, Dtype, LoadMode


class ClusterSpec(TypedDict):
    """A new EKS cluster, or an existing one by name."""

    existing_name: NotRequired[str]
    """name of an existing EKS cluster; none: a new one"""
    kubernetes_version: NotRequired[str]
    """version of a new cluster, quoted; none: 1.35"""
    vpc_id: NotRequired[str]
    """VPC of a new cluster; none: the account's default VPC"""
    private_subnet_ids: NotRequired[Sequence[str]]
    """subnets of nodes; none: the cluster's own"""
    endpoint_public_access: NotRequired[bool]
    """whether a new cluster's API is reachable from the internet; none: true"""
    public_access_cidrs: NotRequired[Sequence[str]]
    """ranges that may reach it there; none: everyone, with credentials"""
    system_instance_type: NotRequired[str]
    """instance type of nodes for the head and the operator; none: m7i.xlarge"""
    system_nodes: NotRequired[int]
    """number of such nodes in a new cluster; none: 2"""


class NodeGroupSpec(TypedDict):
    """One GPU node group with a model cache on its NVMe instance store."""

    name: str
    """unique name of the pool"""
    instance_type: str
    """a GPU instance type with NVMe, such as g6.xlarge"""
    operating_system: NotRequired[OperatingSystem]
    """al2023 or bottlerocket, NVIDIA variant"""
    min_nodes: NotRequired[int]
    """least nodes"""
    max_nodes: int
    """most nodes"""
    capacity_type: NotRequired[CapacityType]
    """on_demand or spot"""
    ami_release_version: NotRequired[str]
    """EKS AMI release to pin, such as 1.35.0-20260520"""
    ami_id: NotRequired[str]
    """an image of your own; excludes ami_release_version"""
    root_volume_gib: NotRequired[int]
    """size of the encrypted gp3 root volume"""
    cache_budget_gib: NotRequired[float]
    """most of the NVMe that the model cache may hold"""
    pod_memory_gib: NotRequired[float]
    """memory limit of a worker pod; none: its share of a node"""


class LimitsSpec(TypedDict):
    """Bounds of one replica."""

    max_ongoing_requests: NotRequired[int]
    """requests that one replica works on at once"""
    max_queued_requests: NotRequired[int]
    """requests that wait per proxy; over it 503"""
    max_batch_size: NotRequired[int]
    """inputs in one forward pass"""
    batch_wait_s: NotRequired[float]
    """how long a batch waits to fill"""
    request_deadline_s: NotRequired[float]
    """a request older than this is dropped"""
    max_body_bytes: NotRequired[int]
    """largest request body"""
    max_batch_cost: NotRequired[int]
    """most cost of one forward pass, in the tokens or pixels that the class counts"""
    busy_status: NotRequired[int]
    """what a request over the limits gets: 503 or 429"""


class AutoscalingSpec(TypedDict):
    """How Serve moves between the replica bounds of a model."""

    target_ongoing_requests: NotRequired[float]
    """ongoing requests per replica to aim for"""
    look_back_period_s: NotRequired[float]
    """window of the average"""
    upscale_delay_s: NotRequired[float]
    """how long a need lasts before replicas are added"""
    downscale_delay_s: NotRequired[float]
    """how long a surplus lasts before replicas go; none: 600 or twice load_time_s, whichever is longer"""
    max_step: NotRequired[int]
    """replicas that are added at once"""
    load_time_s: NotRequired[float]
    """seconds until a new replica is ready, as measured; none: on a new node, as the plan expects"""


class VariantSpec(TypedDict):
    """Other weights of a model's class, such as a fine-tune: same code and at most the same size."""

    name: str
    """last part of its route: /embed/<name>"""
    uri: str
    """s3://bucket/prefix/ or file:///directory/"""
    snapshot_id: NotRequired[str]
    """pins the content; `ray-model inspect` prints it"""


class ModelSpec(TypedDict):
    """One model, as a model engineer describes it."""

    name: str
    """unique name; also the deployment's"""
    route: str
    """path prefix of its requests, such as /embed"""
    model_class: str
    """import path of the model class, module:Class"""
    uri: str
    """s3://bucket/prefix/ or file:///directory/"""
    node_group: NotRequired[str]
    """pool that it runs on; may be left out where there is one"""
    snapshot_id: NotRequired[str]
    """pins the content; `ray-model inspect` prints it"""
    include: NotRequired[Sequence[str]]
    """file patterns to fetch"""
    exclude: NotRequired[Sequence[str]]
    """file patterns to leave out"""
    dtype: NotRequired[Dtype]
    """type of the weights on the device"""
    keep_converted: NotRequired[bool]
    """whether a node keeps the copy in another dtype for its next replica"""
    variants: NotRequired[Sequence[VariantSpec]]
    """other weights that each replica loads when they are asked for"""
    device: NotRequired[Device]
    """where the weights live"""
    load_mode: NotRequired[LoadMode]
    """lazy or background; none: lazy in dev, background elsewhere"""
    weights_gib: float
    """size of the model's files; `ray-model inspect` prints it"""
    host_peak_gib: NotRequired[float]
    """anonymous host memory at the peak of a load"""
    gpu_gib: NotRequired[float]
    """device memory of weights and activations"""
    resident_gib: NotRequired[float]
    """most memory of a replica's loaded variants on its device; none: one of the model's size"""
    request_gib: NotRequired[float]
    """host memory of one ongoing request"""
    num_cpus: NotRequired[float]
    """CPUs of one replica"""
    num_gpus: NotRequired[float]
    """GPUs of one replica; a fraction shares one GPU"""
    min_replicas: NotRequired[int]
    """replicas at rest"""
    max_replicas: NotRequired[int]
    """most replicas"""
    surge: NotRequired[bool]
    """whether a new version starts a replica before an old one stops; needs room for one more"""
    limits: NotRequired[LimitsSpec]
    """bounds of one replica"""
    autoscaling: NotRequired[AutoscalingSpec]
    """how Serve moves between the replica bounds"""


class ServingSpec(TypedDict):
    """What all replicas and nodes of the Serve application keep to."""

    loads_at_once_per_node: NotRequired[int]
    """loads to a device at once on a node"""
    memory_guard_fraction: NotRequired[float]
    """new work is refused while this part of the pod's memory is taken"""
    rate_cap_mib_per_s: NotRequired[float]
    """most that all downloads of a node take together; none: its whole network"""
    trace_endpoint: NotRequired[str]
    """where traces go, as OTLP over HTTP; none: nowhere"""


class RaySpec(TypedDict):
    """The RayService: image, version, namespace, head and upgrades."""

    image: str
    """serving image; its tag names the Ray version"""
    version: NotRequired[str]
    """Ray version of the image"""
    namespace: NotRequired[str]
    """Kubernetes namespace of the RayService"""
    upgrade: NotRequired[Upgrade]
    """new_cluster or none"""
    head_cpus: NotRequired[int]
    """CPUs of the head pod"""
    head_memory_gib: NotRequired[float]
    """memory of the head pod"""


class KubeRaySpec(TypedDict):
    """The KubeRay operator."""

    chart_version: NotRequired[str]
    """version of the kuberay-operator chart and of its CRDs"""
    namespace: NotRequired[str]
    """Kubernetes namespace of the operator"""
    crd_source: NotRequired[str]
    """directory or URL that has its CRDs; none: the tag of the KubeRay repository"""


@dataclass(frozen=True, kw_only=True)
class GpuServingStackArgs:
    """One environment, with the keys of ``Pulumi.<env>.yaml``."""

    environment: Environment
    """dev, staging or prod"""
    name: str | None = None
    """prefix of every resource name"""
    region: str
    """AWS region, such as us-east-1"""
    tags: Mapping[str, str] | None = None
    """tags of every AWS resource, beside the stack's own"""
    cluster: ClusterSpec | None = None
    """a new or an existing EKS cluster"""
    node_groups: Sequence[NodeGroupSpec]
    """the GPU pools"""
    models: Sequence[ModelSpec]
    """the models to serve"""
    models_kms_key_arns: Sequence[str] | None = None
    """keys that the models' buckets are encrypted with, as key ARNs"""
    serving: ServingSpec | None = None
    """what all replicas and nodes of the application keep to"""
    ray: RaySpec
    """image, version and upgrades of the RayService"""
    kuberay: KubeRaySpec | None = None
    """the operator"""


def as_mapping(args: object, component: str) -> dict[str, Any]:
    """Arguments as a mapping without what was left out. A host for another language delivers them as one already.

    Raises ``pulumi.InputPropertiesError`` where they are neither arguments nor a mapping.
    """
    if isinstance(args, Mapping):
        given = dict(cast("Mapping[str, Any]", args))
    elif isinstance(args, GpuServingStackArgs):
        given = {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
    else:
        raise input_error(component, [("args", f"got {show(args)}, must be a GpuServingStackArgs or a mapping")])
    return {key: value for key, value in given.items() if value is not None}


def stack_settings(given: Mapping[str, Any], component: str) -> StackSettings:
    """Validated settings. Raises ``pulumi.InputPropertiesError`` with every problem at once."""
    with problems_as_properties(component):
        return StackSettings.from_mapping(given)


@contextmanager
def problems_as_properties(component: str) -> Generator[None]:
    """Turn a :class:`SettingsError` into the error that Pulumi shows property by property, in every language."""
    try:
        yield
    except SettingsError as error:
        raise_problems(component, [(problem.path, problem.message) for problem in error.problems])
