"""From a stack file's model to the settings that its replicas get."""

import dataclasses
import math

from eks_gpu_serving.settings import Environment, StackModel, StackSettings
from ray_model_serving.contract.memory import GIB, default_host_peak_bytes, resident_variant_bytes
from ray_model_serving.contract.problems import Problems
from ray_model_serving.contract.reading import at
from ray_model_serving.contract.settings import (
    LOAD_TIMES_BEFORE_DOWNSCALE,
    RAY_STEPS_PER_UNIT,
    Device,
    Dtype,
    LoadMode,
    ModelDescription,
    ModelSettings,
    Variant,
)


def serving_model(settings: StackSettings, model: StackModel) -> ModelSettings:
    """Resolve what the stack file leaves open: load mode by environment, peaks from the size of the weights.

    Of the autoscaling what follows from the time of a load is left open: see :func:`with_load_time`.
    """
    weights_bytes = math.ceil(model.weights_gib * GIB)
    host_peak_bytes = (
        default_host_peak_bytes(weights_bytes, model.dtype)
        if model.host_peak_gib is None
        else math.ceil(model.host_peak_gib * GIB)
    )
    default_mode = LoadMode.LAZY if settings.environment is Environment.DEV else LoadMode.BACKGROUND
    said = {field.name: getattr(model, field.name) for field in dataclasses.fields(ModelDescription)}
    said["autoscaling"] = model.autoscaling.resolved()
    return ModelSettings(
        **said,
        load_mode=model.load_mode or default_mode,
        weights_bytes=weights_bytes,
        host_peak_bytes=host_peak_bytes,
        gpu_bytes=_gpu_bytes(model, weights_bytes),
        request_bytes=math.ceil(model.request_gib * GIB),
        resident_bytes=None if model.resident_gib is None else math.ceil(model.resident_gib * GIB),
    )


def _gpu_bytes(model: StackModel, weights_bytes: int) -> int:
    if model.device is Device.CPU:
        return 0
    if model.gpu_gib is not None:
        return math.ceil(model.gpu_gib * GIB)
    # Activations of an ongoing request are taken to be as large as its host part where nothing is declared.
    return weights_bytes + model.limits.max_ongoing_requests * math.ceil(model.request_gib * GIB)


def with_load_time(
    model: StackModel, serving: ModelSettings, expected_s: float, path: str, problems: Problems
) -> ModelSettings:
    """The model with its autoscaling tied to how long a replica takes to come back: as measured, or ``expected_s``.

    ``expected_s`` is for a new node: who scales nodes takes the node, too, once no replica is on it.
    """
    scaling = model.autoscaling.resolved(expected_s)
    if model.autoscaling.load_time_s is None and model.autoscaling.downscale_delay_s is not None:
        least_s = LOAD_TIMES_BEFORE_DOWNSCALE * expected_s
        if scaling.downscale_delay_s < least_s:
            problems.add(
                at(path, "autoscaling.downscale_delay_s"),
                f"got {scaling.downscale_delay_s:g}, must be at least {LOAD_TIMES_BEFORE_DOWNSCALE} x {expected_s:g} "
                "s, which the plan expects until a replica on a new node is ready; it would go soon after it came. "
                f"Write {least_s:g} or leave it out, or write load_time_s as you measured it",
            )
    return dataclasses.replace(serving, autoscaling=scaling)


def is_download(uri: str) -> bool:
    """Whether nodes fetch what is there; what is in the image or on disk costs neither time nor cache."""
    return uri.startswith("s3://")


def downloads(model: ModelSettings) -> int:
    """How many snapshots of at most the model's size its replicas may ask a node to fetch: its own, each variant's."""
    return sum(is_download(uri) for uri in (model.uri, *(variant.uri for variant in model.variants)))


def prefetched_variants(model: ModelSettings) -> tuple[Variant, ...]:
    """The variants that nodes fetch before a replica starts: the first ones, as many as a replica holds at once.

    A replica starts after its node's prefetch, so that a long list would delay every start by what few requests need;
    the others are fetched when they are first asked for.
    """
    held = resident_variant_bytes(model) // model.weights_bytes
    return tuple(variant for variant in model.variants if is_download(variant.uri))[:held]


def converted_bytes(model: ModelSettings) -> int:
    """Most bytes of the copy in another type that a node keeps of one snapshot of a model; 0 where none is kept.

    Weights are stored in 16 bits at least: a copy in 16 bits is at most as large as the files, in 32 at most twice.
    """
    if model.dtype is Dtype.AUTO or not model.keep_converted:
        return 0
    return model.weights_bytes * (2 if model.dtype is Dtype.FLOAT32 else 1)


def replicas_per_gpu(model: ModelSettings) -> int:
    """How many replicas share one GPU; 1 for a model that takes whole GPUs or none. In Ray's whole steps, exactly."""
    if 0 < model.num_gpus < 1:
        return RAY_STEPS_PER_UNIT // round(model.num_gpus * RAY_STEPS_PER_UNIT)
    return 1
