"""What must hold before a single weight is read: the load fits the declared peak, the cgroup and the device."""

import torch

from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.host_memory import MemoryLimit
from ray_model_serving.loading.errors import DeviceUnavailableError, InsufficientMemoryError
from ray_model_serving.store.checkpoint import Checkpoint, is_converted


def check_host_memory(
    checkpoint: Checkpoint,
    dtype: Dtype,
    device: Device,
    declared_bytes: int | None,
    limit: MemoryLimit | None,
    *,
    mapped: bool = True,
) -> None:
    """Raises :class:`InsufficientMemoryError` with the declared or available and the needed bytes."""
    needed_bytes = checkpoint.host_peak_bytes(dtype, device)
    if not mapped and device is Device.CPU:
        # Every tensor is read into memory of its own, and one that is converted is there twice for a moment.
        converted = [t.size_bytes for t in checkpoint.tensors.values() if is_converted(t, dtype)]
        needed_bytes = checkpoint.loaded_bytes(dtype) + max(converted, default=0)
    check_needed(needed_bytes, f"loading as {dtype.value} on {device.value}", declared_bytes, limit)


def check_needed(needed_bytes: int, doing: str, declared_bytes: int | None, limit: MemoryLimit | None) -> None:
    """Raises :class:`InsufficientMemoryError` when more is needed than was declared or than the cgroup has left."""
    what = f"{doing} needs {needed_bytes} bytes of host memory at its peak"
    if declared_bytes is not None and needed_bytes > declared_bytes:
        raise InsufficientMemoryError(
            f"{what}, declared are {declared_bytes} bytes",
            hint="raise the model's host_peak, or store the weights in the type that they are loaded as: they are "
            "mapped then",
        )
    if limit is not None and needed_bytes > limit.available_bytes:
        raise InsufficientMemoryError(
            f"{what}, {limit.available_bytes} bytes are left of the limit of {limit.limit_bytes} bytes ({limit.path})",
            hint="raise the pod's memory limit, or run fewer replicas on it",
        )


def check_device(checkpoint: Checkpoint, dtype: Dtype, device: Device) -> None:
    """Raises :class:`DeviceUnavailableError` without a GPU, :class:`InsufficientMemoryError` when one is too full."""
    if device is not Device.CUDA:
        return
    if not torch.cuda.is_available():
        raise DeviceUnavailableError(
            "the model is to be loaded on cuda, and torch sees no CUDA device",
            hint="check the pod's nvidia.com/gpu request, the node's driver and the CUDA build of torch",
        )
    check_device_bytes(checkpoint.loaded_bytes(dtype))


def check_device_bytes(needed_bytes: int) -> None:
    """Raises :class:`InsufficientMemoryError` when the GPU has less left. Asks torch, which must see the GPU."""
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    if needed_bytes > free_bytes:
        raise InsufficientMemoryError(
            f"the weights need {needed_bytes} bytes on the GPU, {free_bytes} of {total_bytes} bytes are free",
            hint="use a smaller type or a larger GPU, or let fewer processes share this one",
        )
