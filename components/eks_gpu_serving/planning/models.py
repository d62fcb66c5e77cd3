"""From a stack file's model to the settings that its replicas get."""

import dataclasses
import math

from eks_gpu_serving.settings import Environment, StackModel, StackSettings
from ray_model_serving.contract.memory import GIB, default_host_peak_bytes
from ray_model_serving.contract.settings import (
    RAY_STEPS_PER_UNIT,
    Device,
    LoadMode,
    ModelDescription,
    ModelSettings,
)


def serving_model(settings: StackSettings, model: StackModel) -> ModelSettings:
    """Resolve what the stack file leaves open: load mode by environment, peaks from the size of the weights."""
    weights_bytes = math.ceil(model.weights_gib * GIB)
    host_peak_bytes = (
        default_host_peak_bytes(weights_bytes, model.dtype)
        if model.host_peak_gib is None
        else math.ceil(model.host_peak_gib * GIB)
    )
    default_mode = LoadMode.LAZY if settings.environment is Environment.DEV else LoadMode.BACKGROUND
    said = {field.name: getattr(model, field.name) for field in dataclasses.fields(ModelDescription)}
    return ModelSettings(
        **said,
        load_mode=model.load_mode or default_mode,
        weights_bytes=weights_bytes,
        host_peak_bytes=host_peak_bytes,
        gpu_bytes=_gpu_bytes(model, weights_bytes),
        request_bytes=math.ceil(model.request_gib * GIB),
    )


def _gpu_bytes(model: StackModel, weights_bytes: int) -> int:
    if model.device is Device.CPU:
        return 0
    if model.gpu_gib is not None:
        return math.ceil(model.gpu_gib * GIB)
    # Activations of an ongoing request are taken to be as large as its host part where nothing is declared.
    return weights_bytes + model.limits.max_ongoing_requests * math.ceil(model.request_gib * GIB)


def is_download(model: ModelSettings) -> bool:
    """Whether nodes fetch the model; one that is in the image or on disk costs neither time nor cache."""
    return model.uri.startswith("s3://")


def replicas_per_gpu(model: ModelSettings) -> int:
    """How many replicas share one GPU; 1 for a model that takes whole GPUs or none. In Ray's whole steps, exactly."""
    if 0 < model.num_gpus < 1:
        return RAY_STEPS_PER_UNIT // round(model.num_gpus * RAY_STEPS_PER_UNIT)
    return 1
