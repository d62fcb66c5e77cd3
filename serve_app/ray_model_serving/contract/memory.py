"""The memory model: one set of formulas for the plan, the loader's check and the alerts.

Per worker pod the limit L (equal to the request) satisfies
``L >= object store + system reserve + sum of actor memory + mapped weights``. Ray alone would promise actors the whole
limit and the object store on top of it; the kernel counts both against the same cgroup.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ray_model_serving.contract.settings import Device, Dtype, ModelSettings

MIB = 1024**2
GIB = 1024**3

# A Serve replica with torch imported and no model has 363 MiB anonymous, with MiniLM loaded and after long requests
# 395 MiB (RssAnon, Ray 2.60, torch 2.13, no GPU).
PROCESS_BASELINE_BYTES = 512 * MIB
# A Serve replica without torch, which passes requests on: 102 MiB anonymous (as above).
INGRESS_BASELINE_BYTES = 256 * MIB
# Requests of one model that the ingress holds at most, whatever its replicas could take.
INGRESS_MAX_REQUESTS = 128
# Host memory of a process that holds a CUDA context, and the context's own share of the device. Not measured by this
# project (it has no GPU to measure on): on the safe side of what NVIDIA's documentation and users report.
CUDA_HOST_BYTES = 1 * GIB
CUDA_CONTEXT_BYTES = 512 * MIB
# Serve passes requests through the object store only when they are large; weights never go through it.
OBJECT_STORE_BYTES = 512 * MIB
# Ray warns and falls back to /tmp when /dev/shm is not somewhat larger than the object store.
SHM_SURPLUS_BYTES = 64 * MIB
# Raylet, dashboard agent, runtime-env agent, log monitor and the Serve proxy of one worker pod.
SYSTEM_FIXED_BYTES = 1280 * MIB
# Ray's memory monitor starts to kill workers here (RAY_memory_usage_threshold, Ray 2.60).
RAY_KILL_THRESHOLD = 0.95
# Weights that share a device leave room for fragmentation and for libraries' work spaces.
GPU_USABLE_FRACTION = 0.92

# Anonymous peak over the bytes of the weights. Same dtype: the file is mapped. Conversion: one tensor at a time.
SAME_DTYPE_PEAK_FACTOR = 0.15
CONVERSION_PEAK_FACTOR = 1.05


def default_host_peak_bytes(weights_bytes: int, dtype: Dtype) -> int:
    """Anonymous memory that a load needs at its peak, for a model that declares none."""
    factor = SAME_DTYPE_PEAK_FACTOR if dtype is Dtype.AUTO else CONVERSION_PEAK_FACTOR
    return math.ceil(weights_bytes * factor)


def actor_memory_bytes(model: ModelSettings) -> int:
    """What one replica reserves: baseline, load peak, loaded variants and the requests that it works on at once."""
    on_cuda = model.device is Device.CUDA
    cuda = CUDA_HOST_BYTES if on_cuda else 0
    # On the host a variant may be mapped, and so reclaimable, or converted and not: counted as the latter.
    variants = 0 if on_cuda else resident_variant_bytes(model)
    requests = model.limits.max_ongoing_requests * model.request_bytes
    return PROCESS_BASELINE_BYTES + cuda + model.host_peak_bytes + variants + requests


def resident_variant_bytes(model: ModelSettings) -> int:
    """Most bytes that the loaded variants of one replica take on its device, beside the model's own weights."""
    if not model.variants:
        return 0
    return model.resident_bytes or model.weights_bytes


def device_bytes(model: ModelSettings) -> int:
    """Device memory of one replica: weights, activations and loaded variants; 0 on cpu."""
    return model.gpu_bytes + resident_variant_bytes(model) if model.device is Device.CUDA else 0


def ingress_requests(model: ModelSettings) -> int:
    """Requests of one model that an ingress holds at once: what its replicas work on and queue, within a bound."""
    limits = model.limits
    wanted = model.max_replicas * (limits.max_ongoing_requests + limits.max_queued_requests)
    return min(wanted, INGRESS_MAX_REQUESTS)


def ingress_memory_bytes(models: Sequence[ModelSettings]) -> int:
    """What the ingress of an application with several models reserves; 0 with one, which needs no ingress."""
    if len(models) == 1:
        return 0
    bodies = sum(ingress_requests(model) * model.limits.max_body_bytes for model in models)
    return INGRESS_BASELINE_BYTES + bodies


@dataclass(frozen=True, kw_only=True)
class PodMemory:
    """How the memory limit of one Ray worker pod is divided, in bytes; the parts add up to ``limit_bytes``."""

    limit_bytes: int
    object_store_bytes: int
    system_reserve_bytes: int
    actors_bytes: int
    """Rendered as ``rayStartParams.memory``: what Ray may hand out to replicas."""
    mapped_weights_bytes: int
    """Weights that CPU replicas keep mapped, once per model; 0 on GPU pods, which need them only during the load."""

    @property
    def shm_bytes(self) -> int:
        """Bound of the memory-backed ``/dev/shm``; the surplus is part of the system reserve."""
        return self.object_store_bytes + SHM_SURPLUS_BYTES


def needed_pod_bytes(actors_bytes: int, mapped_weights_bytes: int = 0) -> int:
    """The smallest limit of a pod whose replicas reserve ``actors_bytes`` together, rounded up to whole MiB."""
    fixed = OBJECT_STORE_BYTES + SHM_SURPLUS_BYTES + SYSTEM_FIXED_BYTES
    needed = (fixed + actors_bytes + mapped_weights_bytes) / RAY_KILL_THRESHOLD
    return math.ceil(needed / MIB) * MIB


def split_pod(limit_bytes: int, actors_bytes: int, mapped_weights_bytes: int = 0) -> PodMemory:
    """Divide a limit; what it has beyond the need goes to the reserve, where the page cache uses it.

    Raises ValueError when the limit is below :func:`needed_pod_bytes`; callers check first and report both numbers.
    """
    needed = needed_pod_bytes(actors_bytes, mapped_weights_bytes)
    if limit_bytes < needed:
        raise ValueError(f"pod limit {limit_bytes} is below the needed {needed} bytes")
    return PodMemory(
        limit_bytes=limit_bytes,
        object_store_bytes=OBJECT_STORE_BYTES,
        system_reserve_bytes=limit_bytes - OBJECT_STORE_BYTES - actors_bytes - mapped_weights_bytes,
        actors_bytes=actors_bytes,
        mapped_weights_bytes=mapped_weights_bytes,
    )


def needed_device_bytes(gpu_bytes: Iterable[int]) -> int:
    """What processes that share one GPU need together; ``gpu_bytes`` is weights and activations of each."""
    return sum(CUDA_CONTEXT_BYTES + needed for needed in gpu_bytes)


def usable_device_bytes(device_bytes: int) -> int:
    """What of a GPU's memory a plan may use."""
    return math.floor(device_bytes * GPU_USABLE_FRACTION)
