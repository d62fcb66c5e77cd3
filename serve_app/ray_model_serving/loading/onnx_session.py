"""An ONNX model to a session of ONNX Runtime, checked and reported as a torch model is.

Proven on the CPU. CUDA and TensorRT are chosen where ONNX Runtime has them; that is unproven here, since this project's
tests have no GPU.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import torch

from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.host_memory import tightest_limit
from ray_model_serving.loading.errors import (
    BuildFailedError,
    DeviceUnavailableError,
    UnsupportedCheckpointError,
)
from ray_model_serving.loading.onnx_file import external_files
from ray_model_serving.loading.pickles import read_through
from ray_model_serving.loading.preflight import check_device_bytes, check_needed
from ray_model_serving.loading.report import LoadReport
from ray_model_serving.loading.sampler import PeakSampler
from ray_model_serving.store import Snapshot
from ray_model_serving.store.disk import network_type
from ray_model_serving.store.errors import InvalidModelFileError, NoWeightsError

# Anonymous peak over the bytes of the weights. Measured with onnxruntime 1.32: weights inside the file are parsed into
# memory, the largest tensor twice (1.12 for eight equal ones, 1.87 packed; bounded for any model by the sums below);
# those in an external file are mapped (0.00) or packed (1.00).
_INLINE_FACTOR = 2.0
_PACKED_FACTOR = 1.0

log = logging.getLogger(__name__)

Providers = list[tuple[str, dict[str, str]]]


@dataclass(frozen=True, kw_only=True)
class LoadedSession:
    """A session that is ready for inference."""

    session: onnxruntime.InferenceSession
    report: LoadReport
    copy: None = None


def load_session(
    snapshot: Snapshot,
    *,
    device: Device,
    dtype: Dtype = Dtype.AUTO,
    file: str | None = None,
    threads: int = 1,
    prepack: bool = False,
    host_peak_bytes: int | None = None,
    engines: Path | None = None,
) -> LoadedSession:
    """Make a session of the snapshot's ONNX file, with weights in external files or in itself.

    ``threads`` work on one request; they do not spin between requests. ``host_peak_bytes`` is checked as in ``load``.
    ``engines`` is where TensorRT keeps what it compiled. Keep the snapshot open while the session is in use. Raises the
    errors of ``loading.errors`` and ``store.errors``.
    """
    if dtype is not Dtype.AUTO:
        raise UnsupportedCheckpointError(
            f"the model is to be loaded as {dtype.value}, an ONNX model has the types of its file",
            hint="set dtype to auto, and export the model in the type that is wanted",
        )
    started = time.monotonic()
    with PeakSampler() as sampler:
        path = _onnx_file(snapshot, file)
        inline_bytes, external_bytes = _weights(snapshot, path)
        needed_bytes = int((_INLINE_FACTOR + prepack * _PACKED_FACTOR) * inline_bytes)
        needed_bytes += int(prepack * _PACKED_FACTOR * external_bytes)
        check_needed(needed_bytes, f"an ONNX session on {device.value}", host_peak_bytes, tightest_limit())
        providers = choose_providers(onnxruntime.get_available_providers(), device, engines)
        if device is Device.CUDA and torch.cuda.is_available():  # with a torch for the CPU nobody here knows
            check_device_bytes(inline_bytes + external_bytes)
        _read_ahead(snapshot, path)
        options = session_options(threads, prepack=prepack)
        try:
            session = onnxruntime.InferenceSession(snapshot.path / path, options, providers=providers)
        except Exception as error:  # ONNX Runtime's own exceptions have no common base but this
            raise BuildFailedError(
                f"ONNX Runtime {onnxruntime.__version__} can't make a session of {path}: {error}",
                hint="its version may be too old for the file's opset, or the file is damaged",
            ) from error
        if device is Device.CUDA and session.get_providers()[0] != providers[0][0]:
            raise DeviceUnavailableError(
                f"ONNX Runtime fell back to {session.get_providers()[0]} from {providers[0][0]}",
                hint="look at its log above: the versions of CUDA, cuDNN or TensorRT in the image do not match it",
            )
    seconds = time.monotonic() - started
    report = LoadReport(
        seconds={"map": seconds, "total": seconds},
        model_bytes=inline_bytes + external_bytes,
        peak_anon_bytes=sampler.peak_anon_bytes,
        peak_file_bytes=sampler.peak_file_bytes,
    )
    return LoadedSession(session=session, report=report)


def weights_bytes(snapshot: Snapshot, file: str | None) -> int:
    """Bytes of the weights that :func:`load_session` brings to the device. Raises what it raises for the files."""
    return sum(_weights(snapshot, _onnx_file(snapshot, file)))


def _read_ahead(snapshot: Snapshot, path: str) -> None:
    """On a network file system, read all files in large pieces first: ONNX Runtime maps external weights, and would
    fetch them there page by page.
    """
    network = network_type(snapshot.path)
    if network is None:
        return
    log.warning("%s is on %s: its weights are read in large pieces first; use the node's cache", snapshot.path, network)
    for name in [path, *sorted(_external(snapshot, path))]:
        read_through(snapshot.path / name)


def choose_providers(available: Sequence[str], device: Device, engines: Path | None) -> Providers:
    """ONNX Runtime's execution providers in order of preference: TensorRT, CUDA and the CPU for what they can't.

    Raises :class:`DeviceUnavailableError` where a GPU is wanted and this build of ONNX Runtime has none.
    """
    cpu: Providers = [("CPUExecutionProvider", {})]
    if device is Device.CPU:
        return cpu
    if "CUDAExecutionProvider" not in available:
        raise DeviceUnavailableError(
            f"the model is to run on cuda, and ONNX Runtime has {', '.join(available)}",
            hint="install onnxruntime-gpu instead of onnxruntime in the serving image",
        )
    gpu: Providers = [("CUDAExecutionProvider", {})]
    if "TensorrtExecutionProvider" in available:
        cache = {"trt_engine_cache_enable": "1", "trt_engine_cache_path": str(engines)} if engines else {}
        gpu.insert(0, ("TensorrtExecutionProvider", cache))
    return [*gpu, *cpu]


def session_options(threads: int, *, prepack: bool) -> onnxruntime.SessionOptions:
    """Bounded threads that sleep when idle, so that replicas of a node do not take each other's CPUs."""
    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads = max(1, threads)
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.disable_prepacking", "0" if prepack else "1")
    return options


def _onnx_file(snapshot: Snapshot, wanted: str | None) -> str:
    found = sorted(entry.path for entry in snapshot.manifest.files if entry.path.endswith(".onnx"))
    if wanted in found:
        return wanted
    if wanted is None and len(found) == 1:
        return found[0]
    if not found:
        raise NoWeightsError(
            f"no .onnx file among {len(snapshot.manifest.files)} files",
            hint="the default of exclude leaves *.onnx out: set the model's exclude",
        )
    raise InvalidModelFileError(
        f"the model class asks for {wanted or 'the only .onnx file'}, there are: {', '.join(found)}",
        hint="name one of them in the class's onnx_file",
    )


def _weights(snapshot: Snapshot, path: str) -> tuple[int, int]:
    """Bytes in the ONNX file, and bytes of its external files."""
    sizes = {entry.path: entry.size_bytes for entry in snapshot.manifest.files}
    external = _external(snapshot, path)
    if lost := sorted(external - set(sizes)):
        raise InvalidModelFileError(
            f"{path}: keeps weights in files that are not among the model's: {', '.join(lost)}",
            hint="upload them beside it, and let include and exclude let them through",
        )
    return sizes[path], sum(sizes[name] for name in external)


def _external(snapshot: Snapshot, path: str) -> set[str]:
    parent = path.rpartition("/")[0]
    return {f"{parent}/{name}" if parent else name for name in external_files(snapshot.path / path)}
