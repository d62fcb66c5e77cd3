"""What torch holds on the GPU, and the share of it that a process may take.

Not exercised on a real device by this project's tests, which have no GPU.
"""

import torch

from ray_model_serving.contract.settings import Device


def prepare(device: Device, fraction: float | None = None) -> None:
    """Before the first allocation of a load: start a new peak and, with a fraction of a GPU, hold torch to it.

    Ray's ``num_gpus`` below 1 only schedules; without this one process takes what the other was promised. It is torch
    that keeps to it, for its own allocations: a CUDA context and other libraries are not counted.
    """
    if device is not Device.CUDA:
        return
    if fraction is not None and fraction < 1:
        torch.cuda.set_per_process_memory_fraction(fraction)
    torch.cuda.reset_peak_memory_stats()


def peak_bytes(device: Device) -> int:
    """The most that torch had allocated since :func:`prepare`; 0 on the CPU."""
    return torch.cuda.max_memory_allocated() if device is Device.CUDA else 0


def free_unused(device: Device) -> None:
    """Give what torch keeps for later allocations back to the device, for whoever shares it."""
    if device is Device.CUDA:
        torch.cuda.empty_cache()
