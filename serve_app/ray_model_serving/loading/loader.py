"""Loads a snapshot into a module that was built without memory.

Same type on the CPU: the module's weights are the mapped file, so replicas of a node share its pages. Another type: one
tensor at a time. CUDA: safetensors' own path, one pinned tensor at a time (not exercised by this project's tests, which
have no GPU).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.host_memory import tightest_limit
from ray_model_serving.loading import gpu
from ray_model_serving.loading.converted import ConvertedCopies, converted_copy
from ray_model_serving.loading.errors import CheckpointMismatchError
from ray_model_serving.loading.matching import (
    Named,
    all_names,
    check_complete,
    check_shapes,
    check_tied,
    match,
    tied_names,
)
from ray_model_serving.loading.meta import Build, build_on_meta
from ray_model_serving.loading.preflight import check_device, check_host_memory
from ray_model_serving.loading.report import LoadedModel, LoadReport
from ray_model_serving.loading.sampler import PeakSampler
from ray_model_serving.loading.types import TORCH
from ray_model_serving.loading.weights import Weights, open_weights
from ray_model_serving.store import Snapshot
from ray_model_serving.store.checkpoint import Checkpoint, is_converted


@dataclass
class _Clock:
    """Seconds of each phase, added up over the tensors."""

    seconds: dict[str, float]

    def add(self, phase: str, since: float) -> float:
        now = time.monotonic()
        self.seconds[phase] += now - since
        return now


def load(
    snapshot: Snapshot,
    build: Build,
    *,
    dtype: Dtype,
    device: Device,
    host_peak_bytes: int | None = None,
    ignore_keys: Sequence[str] = (),
    keep_converted: ConvertedCopies | None = None,
    gpu_fraction: float | None = None,
) -> LoadedModel:
    """Build the module on the meta device and give it the snapshot's weights.

    ``dtype`` is what the checkpoint's floating-point tensors become. Buffers that ``build`` gives a value keep their
    type, where ``module.to(dtype)`` would convert them: tables that are not in the checkpoint stay as exact as they
    were made, and ``forward`` casts what it computes.

    ``host_peak_bytes`` is the declared anonymous memory of the load; a load that needs more is refused before a weight
    is read, as is one that the cgroup has no room for. ``ignore_keys`` are patterns of checkpoint tensors that the
    module does not have. ``keep_converted`` keeps the weights of another type once per node, for CPU models (a GPU
    converts on its own). ``gpu_fraction`` is the share of the GPU that this process may fill. Keep the snapshot and the
    loaded model's ``copy`` open while the module is in use. Raises the errors of ``loading.errors`` and
    ``store.errors``.
    """
    started = time.monotonic()
    clock = _Clock({"map": 0.0, "convert": 0.0, "transfer": 0.0})
    copy: Snapshot | None = None
    try:
        with PeakSampler() as sampler:
            weights = open_weights(snapshot.path, snapshot.manifest.files)
            since = clock.add("map", started)
            if keep_converted and device is Device.CPU:
                copy = converted_copy(snapshot, weights, dtype, keep_converted)
                since = clock.add("convert", since)
            if copy:
                weights = open_weights(copy.path, copy.manifest.files)
            checkpoint = weights.checkpoint.without(ignore_keys)
            check_host_memory(checkpoint, dtype, device, host_peak_bytes, tightest_limit(), mapped=weights.mapped)
            check_device(checkpoint, dtype, device)
            gpu.prepare(device, gpu_fraction)
            module = build_on_meta(build, snapshot.path)
            named = all_names(module)
            check_shapes(named)
            canonical = tied_names(named)
            names = match(module, canonical, checkpoint, weights.aliases)
            clock.add("map", since)
            tensors = dict(_read(weights, checkpoint, dtype, device, clock))
            since = time.monotonic()
            check_tied(names, tensors)
            trained = {name for name, tensor in named if isinstance(tensor, torch.nn.Parameter)}
            _assign(module, names, tensors, canonical, trained)
            _move_buffers(module, device)
            named = all_names(module)
            check_complete(named)
            module.eval()
            for _, tensor in named:
                tensor.requires_grad_(False)  # a scripted module has this for its tensors only
            clock.add("map", since)
    except BaseException:
        if copy:
            copy.close()
        raise
    report = LoadReport(
        seconds={**clock.seconds, "total": time.monotonic() - started},
        model_bytes=_model_bytes(named),
        peak_anon_bytes=sampler.peak_anon_bytes,
        peak_file_bytes=sampler.peak_file_bytes,
        gpu_peak_bytes=gpu.peak_bytes(device),
    )
    return LoadedModel(module=module, report=report, copy=copy)


def _model_bytes(named: Named) -> int:
    """Bytes of all parameters and buffers, tied ones once."""
    tensors = {id(tensor): tensor for _, tensor in named}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _read(
    weights: Weights, checkpoint: Checkpoint, dtype: Dtype, device: Device, clock: _Clock
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor on its device in its type."""
    since = time.monotonic()
    for name, stored in weights.tensors(list(checkpoint.tensors), device):
        tensor = stored
        since = clock.add("transfer" if device is Device.CUDA else "map", since)
        if is_converted(checkpoint.tensors[name], dtype):
            tensor = stored.to(TORCH[dtype])
            del stored  # read without mapping, both would be in memory at once until the next one
            since = clock.add("convert", since)
        yield name, tensor


def _assign(
    module: torch.nn.Module,
    names: Mapping[str, str],
    tensors: Mapping[str, torch.Tensor],
    canonical: Mapping[str, str],
    trained: set[str],
) -> None:
    """Give the module its tensors. Tied names get one Parameter object, or the tie would be cut."""
    parameters: dict[str, torch.Tensor] = {}
    state: dict[str, torch.Tensor] = {}
    for name, source in names.items():
        first = canonical.get(name)
        if first is not None and first in trained:
            if first not in parameters:
                parameters[first] = torch.nn.Parameter(tensors[source], requires_grad=False)
            state[name] = parameters[first]
        else:
            state[name] = tensors[source]
    try:
        module.load_state_dict(state, strict=True, assign=True)
    except RuntimeError as error:
        raise CheckpointMismatchError(
            f"the model does not take the checkpoint: {error}", hint="look at the model class's own load hooks"
        ) from error


def _move_buffers(module: torch.nn.Module, device: Device) -> None:
    """Buffers that build() gave a value are still where it made them. One with several names stays one."""
    moved: dict[int, torch.Tensor] = {}
    for child in module.modules():
        for name, buffer in list(child.named_buffers(recurse=False, remove_duplicate=False)):
            if not buffer.is_meta and buffer.device.type != device.value:
                if id(buffer) not in moved:
                    moved[id(buffer)] = buffer.to(device.value)
                setattr(child, name, moved[id(buffer)])
