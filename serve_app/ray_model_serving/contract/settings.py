"""ServingSettings: what the infrastructure renders into the Serve application's arguments and the builder parses.

Times are seconds (``_s``), sizes bytes (``_bytes``). Unknown keys, wrong types and out-of-range values are refused, all
at once.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from ray_model_serving.contract.problems import Problems
from ray_model_serving.contract.reading import UnreadableError, at, read, readable, setting, to_mapping
from ray_model_serving.contract.rules import pattern_problem, route_problem
from ray_model_serving.contract.uris import uri_problem

NAME_PATTERN = r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?"
# Above what any machine has; it keeps a size with too many digits out of every later computation.
MAX_BYTES = 2**50
# <route>/status, <route>/ready and <route>/warmup report; a variant of such a name could not be told from them.
RESERVED_NAMES = ("status", "ready", "warmup")
BUSY_STATUSES = (503, 429)
# Ray counts resources in whole ten-thousandths and cuts off what is finer (FixedPoint, Ray 2.60).
RAY_STEPS_PER_UNIT = 10_000
# How often Serve hears of a replica's requests; a window that is no longer is refused some day (a warning in Ray 2.60).
METRICS_INTERVAL_S = 10
# A replica that took minutes to load is worth keeping at least twice as long.
LOAD_TIMES_BEFORE_DOWNSCALE = 2
DEFAULT_EXCLUDE = ("*.bin", "*.pt", "*.pth", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.md", ".git*")


class LoadMode(str, Enum):
    """``lazy``: ready at once, the first request loads. ``background``: ready when loaded and warm."""

    LAZY = "lazy"
    BACKGROUND = "background"


class Device(str, Enum):
    """Where the weights live."""

    CUDA = "cuda"
    CPU = "cpu"


class Dtype(str, Enum):
    """``auto`` keeps the file's own type, so that replicas share the mapped file."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class CacheMedium(str, Enum):
    """What the node cache lies on. ``directory`` makes no claim and is for existing clusters and one machine."""

    INSTANCE_STORE = "instance_store"
    EBS = "ebs"
    DIRECTORY = "directory"


# Names that Ray Serve had or has elsewhere; left alone they would be ignored without a word (Ray 2.60's schemas).
RAY_NAMES: Mapping[str, str] = {
    "max_concurrent_queries": "renamed: write limits.max_ongoing_requests",
    "max_ongoing_requests": "write limits.max_ongoing_requests (it belongs one level up from autoscaling)",
    "max_queued_requests": "write limits.max_queued_requests",
    "autoscaling_config": "write autoscaling, with min_replicas and max_replicas on the model",
    "target_num_ongoing_requests_per_replica": "renamed: write autoscaling.target_ongoing_requests",
    "target_ongoing_requests": "write autoscaling.target_ongoing_requests",
    "num_replicas": "write min_replicas and max_replicas",
    "ray_actor_options": "write num_cpus and num_gpus; memory is computed",
    "memory": "not set by hand: it is computed from host_peak and limits, as whole bytes",
    "object_store_memory": "not an actor option in Ray Serve; the plan sets the object store",
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of one replica. Nothing in it may be unbounded."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        "max_concurrent_queries": "renamed: write max_ongoing_requests",
        "target_ongoing_requests": "write it under autoscaling",
    }

    max_ongoing_requests: int = setting(8, doc="requests that one replica works on at once", minimum=1, maximum=1024)
    max_queued_requests: int = setting(16, doc="requests that wait per proxy; over it 503", minimum=1, maximum=10_000)
    max_batch_size: int = setting(8, doc="inputs in one forward pass", minimum=1, maximum=1024)
    batch_wait_s: float = setting(0.01, doc="how long a batch waits to fill", minimum=0, maximum=5)
    request_deadline_s: float = setting(30.0, doc="a request older than this is dropped", above=0, maximum=3600)
    max_body_bytes: int = setting(8 * 1024**2, doc="largest request body", minimum=1, maximum=1024**3)
    max_batch_cost: int | None = setting(
        None,
        doc="most cost of one forward pass, in the tokens or pixels that the class counts",
        minimum=1,
        maximum=2**40,
    )
    busy_status: int = setting(503, doc="what a request over the limits gets: 503 or 429", minimum=429, maximum=503)

    def check(self, path: str, problems: Problems) -> None:
        if self.busy_status not in BUSY_STATUSES:
            text = f"got {self.busy_status}, must be 503 (the service is busy) or 429 (the caller sends too much)"
            problems.add(at(path, "busy_status"), text)


@dataclass(frozen=True, kw_only=True)
class Autoscaling:
    """How Serve moves between min_replicas and max_replicas (Ray Serve 2.60's own terms)."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        **RAY_NAMES,
        "target_num_ongoing_requests_per_replica": "renamed: write target_ongoing_requests",
        "smoothing_factor": "deprecated in Ray Serve; the step is bounded by the application",
        "upscale_smoothing_factor": "deprecated in Ray Serve; the step is bounded by the application",
        "upscaling_factor": "not offered: a factor above 1 turns a burst into a start storm",
        "metrics_interval_s": "deprecated in Ray Serve; left at its default",
        "min_replicas": "write it on the model",
        "max_replicas": "write it on the model",
    }

    target_ongoing_requests: float = setting(
        2.0, doc="ongoing requests per replica to aim for", minimum=1, maximum=1024
    )
    look_back_period_s: float = setting(30.0, doc="window of the average", above=METRICS_INTERVAL_S, maximum=3600)
    upscale_delay_s: float = setting(
        30.0, doc="how long a need lasts before replicas are added", minimum=1, maximum=3600
    )
    downscale_delay_s: float = setting(
        600.0, doc="how long a surplus lasts before replicas go", minimum=60, maximum=86_400
    )
    max_step: int = setting(4, doc="replicas that are added at once", minimum=1, maximum=64)
    load_time_s: float | None = setting(
        None, doc="seconds until a new replica is ready, as measured", above=0, maximum=86_400
    )

    def check(self, path: str, problems: Problems) -> None:
        """Report periods that contradict each other."""
        if not self.look_back_period_s <= self.upscale_delay_s < self.downscale_delay_s:
            problems.add(
                path,
                f"look_back_period_s {self.look_back_period_s:g} <= upscale_delay_s {self.upscale_delay_s:g} < "
                f"downscale_delay_s {self.downscale_delay_s:g} does not hold; replicas would come and go in circles",
            )
        if self.load_time_s is not None and self.downscale_delay_s < LOAD_TIMES_BEFORE_DOWNSCALE * self.load_time_s:
            problems.add(
                at(path, "downscale_delay_s"),
                f"got {self.downscale_delay_s:g}, must be at least {LOAD_TIMES_BEFORE_DOWNSCALE} x load_time_s "
                f"{self.load_time_s:g}; a replica would go soon after it came, and the next peak load it again",
            )


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Other weights of a model's class, such as a fine-tune: same code and at most the same size."""

    name: str = setting(doc="last part of its route: /embed/<name>", pattern=NAME_PATTERN)
    uri: str = setting(doc="s3://bucket/prefix/ or file:///directory/", check=uri_problem)
    snapshot_id: str | None = setting(
        None, doc="pins the content; `ray-model inspect` prints it", pattern=r"[0-9a-f]{32}"
    )


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """What a stack file and an application's arguments say of a model in the same words."""

    RENAMED: ClassVar[Mapping[str, str]] = RAY_NAMES

    name: str = setting(doc="unique name; also the deployment's", pattern=NAME_PATTERN)
    route: str = setting(doc="path prefix of its requests, such as /embed", check=route_problem)
    model_class: str = setting(
        doc="import path of the model class, module:Class", pattern=r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
    )
    uri: str = setting(doc="s3://bucket/prefix/ or file:///directory/", check=uri_problem)
    snapshot_id: str | None = setting(
        None, doc="pins the content; `ray-model inspect` prints it", pattern=r"[0-9a-f]{32}"
    )
    include: tuple[str, ...] = setting(("*",), doc="file patterns to fetch", min_items=1, check=pattern_problem)
    exclude: tuple[str, ...] = setting(DEFAULT_EXCLUDE, doc="file patterns to leave out", check=pattern_problem)
    dtype: Dtype = setting(Dtype.AUTO, doc="type of the weights on the device")
    keep_converted: bool = setting(True, doc="whether a node keeps the copy in another dtype for its next replica")
    variants: tuple[Variant, ...] = setting((), doc="other weights that each replica loads when they are asked for")
    device: Device = setting(Device.CUDA, doc="where the weights live")
    num_cpus: float = setting(1.0, doc="CPUs of one replica", above=0, maximum=512, steps_per_unit=RAY_STEPS_PER_UNIT)
    num_gpus: float = setting(
        0.0,
        doc="GPUs of one replica; a fraction shares one GPU",
        minimum=0,
        maximum=16,
        steps_per_unit=RAY_STEPS_PER_UNIT,
    )
    min_replicas: int = setting(1, doc="replicas at rest", minimum=0, maximum=1000)
    max_replicas: int = setting(1, doc="most replicas", minimum=1, maximum=1000)
    surge: bool = setting(
        False, doc="whether a new version starts a replica before an old one stops; needs room for one more"
    )
    limits: Limits = setting(Limits, doc="bounds of one replica")
    autoscaling: Autoscaling = setting(Autoscaling, doc="how Serve moves between the replica bounds")

    def check(self, path: str, problems: Problems) -> None:
        """Report what spans several fields."""
        with suppress(UnreadableError):
            if self.min_replicas > self.max_replicas:
                text = f"got {self.min_replicas}, must be at most max_replicas {self.max_replicas}"
                problems.add(at(path, "min_replicas"), text)
        with suppress(UnreadableError):
            _check_device(self.device, self.num_gpus, path, problems)
        with suppress(UnreadableError):
            _check_target(self.autoscaling, self.limits, path, problems)
        with suppress(UnreadableError):
            _check_variants(self.variants, at(path, "variants"), problems)


@dataclass(frozen=True, kw_only=True)
class ModelSettings(ModelDescription):
    """One model of an application; every size is known."""

    load_mode: LoadMode = setting(LoadMode.BACKGROUND, doc="when the model is loaded")
    weights_bytes: int = setting(doc="bytes of the model's files", minimum=1, maximum=MAX_BYTES)
    host_peak_bytes: int = setting(doc="anonymous host memory at the peak of a load", minimum=0, maximum=MAX_BYTES)
    gpu_bytes: int = setting(0, doc="device memory of weights and activations; 0 on cpu", minimum=0, maximum=MAX_BYTES)
    request_bytes: int = setting(16 * 1024**2, doc="host memory of one ongoing request", minimum=0, maximum=MAX_BYTES)
    resident_bytes: int | None = setting(
        None, doc="most bytes of loaded variants on the device; none: one variant", minimum=1, maximum=MAX_BYTES
    )

    def check(self, path: str, problems: Problems) -> None:
        super().check(path, problems)
        with suppress(UnreadableError):
            if self.resident_bytes is not None and self.resident_bytes < self.weights_bytes:
                problems.add(
                    at(path, "resident_bytes"),
                    f"got {self.resident_bytes}, must be at least weights_bytes {self.weights_bytes}: no variant fits",
                )


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    """One Serve application: its models and how the node's cache is used."""

    models: tuple[ModelSettings, ...] = setting(doc="the models of the application", min_items=1)
    cache_root: str = setting(doc="absolute path of the node cache in the container", pattern=r"/.+")
    cache_budget_bytes: int = setting(doc="most bytes that the cache may hold on a node", minimum=1, maximum=MAX_BYTES)
    cache_medium: CacheMedium = setting(CacheMedium.INSTANCE_STORE, doc="what the cache lies on")
    baked_root: str | None = setting(None, doc="a read-only cache in the image, looked up first", pattern=r"/.+")
    loads_at_once_per_node: int = setting(1, doc="loads to a device at once on a node", minimum=1, maximum=64)
    memory_guard_fraction: float = setting(
        0.85, doc="new work is refused while this part of the pod's memory is taken", minimum=0.3, maximum=0.94
    )
    rate_cap_bytes_per_s: int | None = setting(
        None, doc="most that all downloads of a node take together", minimum=1024**2, maximum=MAX_BYTES
    )
    trace_endpoint: str | None = setting(None, doc="where traces go, as OTLP over HTTP", pattern=r"https?://.+")
    load_deadline_s: float = setting(doc="a load that takes longer fails", minimum=1, maximum=86_400)
    connections: int | None = setting(None, doc="connections of one fetch; none: from the node", minimum=1, maximum=256)
    expected_role_arn: str | None = setting(None, doc="refuse to start under another identity", pattern=r"arn:.+|<.+>")

    @classmethod
    def from_mapping(cls, given: object) -> "ServingSettings":
        """Parse and validate. Raises :class:`SettingsError` with every problem."""
        problems = Problems("serving settings")
        settings = read(cls, given, "", problems)
        problems.raise_if_any()
        assert settings is not None  # read() returns None only after it reported a problem
        return settings

    def check(self, path: str, problems: Problems) -> None:
        check_unique(self.models, at(path, "models"), "name", problems)
        check_unique(self.models, at(path, "models"), "route", problems)
        check_routes(self.models, at(path, "models"), problems)

    def to_mapping(self) -> dict[str, object]:
        """The form that goes into the Serve application's ``args``."""
        return to_mapping(self)


def check_unique(items: Sequence[object], path: str, key: str, problems: Problems) -> None:
    """Report values of ``key`` that several items have."""
    values = readable(items, key)
    for value in sorted({value for value in values if values.count(value) > 1}):
        problems.add(path, f"{key} {value!r} is used {values.count(value)} times, each {key} is unique")


def check_routes(models: Sequence[ModelDescription], path: str, problems: Problems) -> None:
    """Report routes that belong to another model: of one of its variants, or of its state. The longest route answers a
    request, so that nothing else would ever be heard there."""
    taken: dict[str, str] = {}
    for model in models:
        with suppress(UnreadableError):
            names = (*RESERVED_NAMES, *readable(model.variants, "name"))
            taken |= {f"{model.route.rstrip('/')}/{name}": model.name for name in names}
    for index, model in enumerate(models):
        with suppress(UnreadableError):
            if model.route in taken:
                problems.add(
                    at(f"{path}[{index}]", "route"),
                    f"got {model.route!r}, which is a route of model {taken[model.route]!r}: of a variant or of its "
                    "state",
                )


def _check_variants(variants: Sequence[Variant], path: str, problems: Problems) -> None:
    check_unique(variants, path, "name", problems)
    for index, name in enumerate(readable(variants, "name")):
        if name in RESERVED_NAMES:
            problems.add(at(f"{path}[{index}]", "name"), f"got {name!r}, the route that reports the model's state")


def _check_device(device: Device, num_gpus: float, path: str, problems: Problems) -> None:
    if device is Device.CUDA and num_gpus == 0:
        problems.add(at(path, "num_gpus"), "got 0, a model on device cuda needs a GPU or a fraction of one")
    if device is Device.CPU and num_gpus:
        problems.add(at(path, "num_gpus"), f"got {num_gpus:g}, a model on device cpu asks for no GPU")
    if num_gpus > 1 and not num_gpus.is_integer():
        problems.add(at(path, "num_gpus"), f"got {num_gpus:g}, above 1 only whole GPUs are scheduled")


def _check_target(scaling: Autoscaling, limits: Limits, path: str, problems: Problems) -> None:
    if scaling.target_ongoing_requests > limits.max_ongoing_requests:
        problems.add(
            at(path, "autoscaling.target_ongoing_requests"),
            f"got {scaling.target_ongoing_requests:g}, must be at most limits.max_ongoing_requests "
            f"{limits.max_ongoing_requests}",
        )
