"""StackSettings: one environment's stack file, validated as a whole before anything is planned or created.

Sizes are GiB (``_gib``) here and bytes everywhere else. ``Pulumi.<env>.yaml`` and ``GpuServingStackArgs`` have the same
keys.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from eks_gpu_serving import aws_rules, name_limits
from eks_gpu_serving.name_limits import name_problem
from eks_gpu_serving.settings_parts import (
    MAX_GIB,
    RAY_VERSION,
    ApplicationSettings,
    CapacityType,
    ClusterSettings,
    KubeRaySettings,
    NodeGroupSettings,
    RaySettings,
    StackAutoscaling,
    Upgrade,
)
from ray_model_serving.contract.problems import Problems, SettingsError, nearest
from ray_model_serving.contract.reading import UnreadableError, at, read, readable, setting
from ray_model_serving.contract.settings import (
    NAME_PATTERN,
    RAY_NAMES,
    RAY_STEPS_PER_UNIT,
    LoadMode,
    ModelDescription,
    Variant,
    check_routes,
    check_unique,
)

# Parts are imported from here, so that nobody has to know how they are cut.
__all__ = [
    "RAY_VERSION",
    "ApplicationSettings",
    "CapacityType",
    "ClusterSettings",
    "Environment",
    "KubeRaySettings",
    "NodeGroupSettings",
    "RaySettings",
    "StackAutoscaling",
    "StackModel",
    "StackSettings",
    "Upgrade",
]

_PIN = "is required in prod: `ray-model inspect` prints it"


class Environment(str, Enum):
    """Decides defaults and what is demanded: production wants pinned models and no scale to zero."""

    DEV = "dev"
    STAGING = "staging"
    PROD = "prod"


@dataclass(frozen=True, kw_only=True)
class StackModel(ModelDescription):
    """One model, as a model engineer describes it. Sizes that are left out follow from those of the weights."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        **RAY_NAMES,
        "max_replicas_per_node": "not offered: Ray's autoscaler does not see that bound and adds no node for a replica "
        "that it keeps waiting; num_gpus, num_cpus and the pods of the plan say how many fit a node",
    }

    node_group: str | None = setting(None, doc="pool that it runs on; may be left out where there is one")
    load_mode: LoadMode | None = setting(None, doc="lazy or background; none: lazy in dev, background elsewhere")
    weights_gib: float = setting(
        doc="size of the model's files; `ray-model inspect` prints it", above=0, maximum=MAX_GIB
    )
    host_peak_gib: float | None = setting(
        None, doc="anonymous host memory at the peak of a load", above=0, maximum=MAX_GIB
    )
    gpu_gib: float | None = setting(None, doc="device memory of weights and activations", above=0, maximum=MAX_GIB)
    resident_gib: float | None = setting(
        None,
        doc="most memory of a replica's loaded variants on its device; none: one of the model's size",
        above=0,
        maximum=MAX_GIB,
    )
    request_gib: float = setting(1 / 64, doc="host memory of one ongoing request", minimum=0, maximum=64)
    num_gpus: float = setting(
        1.0,
        doc="GPUs of one replica; a fraction shares one GPU",
        minimum=0,
        maximum=16,
        steps_per_unit=RAY_STEPS_PER_UNIT,
    )
    autoscaling: StackAutoscaling = setting(StackAutoscaling, doc="how Serve moves between the replica bounds")

    @property
    def uris(self) -> list[str]:
        """Where its weights and those of its variants are."""
        return [self.uri, *(variant.uri for variant in self.variants)]

    def check(self, path: str, problems: Problems) -> None:
        super().check(path, problems)
        with suppress(UnreadableError):
            self._check_resident(at(path, "resident_gib"), problems)

    def _check_resident(self, path: str, problems: Problems) -> None:
        if self.resident_gib is None:
            return
        if not self.variants:
            problems.add(path, f"got {self.resident_gib:g}, the model has no variants; name some or leave it out")
        elif self.resident_gib < self.weights_gib:
            problems.add(
                path, f"got {self.resident_gib:g}, must be at least weights_gib {self.weights_gib:g}: no variant fits"
            )


@dataclass(frozen=True, kw_only=True)
class StackSettings:
    """One environment."""

    environment: Environment = setting(doc="dev, staging or prod")
    name: str = setting("gpu-serving", doc="prefix of every resource name", pattern=NAME_PATTERN)
    region: str = setting(doc="AWS region, such as us-east-1", pattern=aws_rules.REGION)
    tags: Mapping[str, str] = setting(dict, doc="tags of every AWS resource, beside the stack's own")
    cluster: ClusterSettings = setting(ClusterSettings, doc="a new or an existing EKS cluster")
    node_groups: tuple[NodeGroupSettings, ...] = setting(doc="the GPU pools", min_items=1)
    models: tuple[StackModel, ...] = setting(doc="the models to serve", min_items=1)
    models_kms_key_arns: tuple[str, ...] = setting(
        (), doc="keys that the models' buckets are encrypted with, as key ARNs", pattern=aws_rules.KEY_ARN
    )
    serving: ApplicationSettings = setting(
        ApplicationSettings, doc="what all replicas and nodes of the application keep to"
    )
    ray: RaySettings = setting(doc="image, version and upgrades of the RayService")
    kuberay: KubeRaySettings = setting(KubeRaySettings, doc="the operator")

    @classmethod
    def from_mapping(cls, given: object, *, source: str = "stack settings") -> "StackSettings":
        """Validate everything. Raises :class:`SettingsError` with every problem at once.

        What does not fit on the machines is told by ``plan``, which needs valid settings.
        """
        problems = Problems(source)
        settings = read(cls, given, "", problems)
        if settings is None:
            raise SettingsError(problems.found, source=source)
        return settings

    @property
    def service_name(self) -> str:
        """Name of the RayService and prefix of what belongs to it."""
        return f"{self.name}-{self.environment.value}"

    @property
    def model_uris(self) -> list[str]:
        """Everything that workers read: the models and their variants."""
        return [uri for model in self.models for uri in model.uris]

    def pool_of(self, model: StackModel) -> str:
        """The node group that a model runs on."""
        return model.node_group or self.node_groups[0].name

    def check(self, path: str, problems: Problems) -> None:  # noqa: ARG002 (always the root)
        for rule in (self._check_unique, self._check_tags, self._check_namespaces, self._check_names):
            with suppress(UnreadableError):
                rule(problems)
        for index, model in enumerate(self.models):
            for check in (self._check_pool, self._check_for_production):
                check(model, f"models[{index}]", problems)

    def _check_unique(self, problems: Problems) -> None:
        check_unique(self.models, "models", "name", problems)
        check_unique(self.models, "models", "route", problems)
        check_routes(self.models, "models", problems)
        check_unique(self.node_groups, "node_groups", "name", problems)

    def _check_tags(self, problems: Problems) -> None:
        for path, reason in aws_rules.tag_problems(self.tags, aws_rules.MAX_STACK_TAGS):
            problems.add(path, reason)

    def _check_namespaces(self, problems: Problems) -> None:
        if self.ray.namespace == self.kuberay.namespace:
            problems.add("kuberay.namespace", f"got {self.kuberay.namespace!r} as ray.namespace, each makes its own")

    def _check_names(self, problems: Problems) -> None:
        # Pairs: a pool may be called cluster.
        made = [("cluster", name_limits.CLUSTER)]
        made += [(name, name_limits.NODE_GROUP) for name in readable(self.node_groups, "name")]
        for part, longest in made:
            too_long = name_problem(f"{self.service_name}-{part}", longest)
            if too_long:
                problems.add("name", f"{too_long}; shorten name (or the pool's)")

    def _check_pool(self, model: StackModel, path: str, problems: Problems) -> None:
        with suppress(UnreadableError):
            pools = readable(self.node_groups, "name")
            given = model.node_group
            if given is None and len(self.node_groups) > 1:
                problems.add(at(path, "node_group"), f"is required where there are several pools: {', '.join(pools)}")
            if given is not None and given not in pools and len(pools) == len(self.node_groups):
                problems.add(at(path, "node_group"), f"got {given!r}, no such pool; {nearest(given, pools)}")

    def _check_for_production(self, model: StackModel, path: str, problems: Problems) -> None:
        with suppress(UnreadableError):
            if self.environment is Environment.PROD and model.snapshot_id is None and model.uri.startswith("s3://"):
                problems.add(at(path, "snapshot_id"), _PIN)
        with suppress(UnreadableError):
            if self.environment is Environment.PROD:
                for index, variant in enumerate(model.variants):
                    self._check_variant(variant, at(path, f"variants[{index}]"), problems)
        with suppress(UnreadableError):
            if self.environment is Environment.PROD and model.min_replicas == 0:
                problems.add(
                    at(path, "min_replicas"), "got 0, prod does not scale to zero: the first caller would wait minutes"
                )

    def _check_variant(self, variant: Variant, path: str, problems: Problems) -> None:
        with suppress(UnreadableError):
            if variant.snapshot_id is None and variant.uri.startswith("s3://"):
                problems.add(at(path, "snapshot_id"), _PIN)
