"""A model class gets its weights, whichever runtime it is for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ray_model_serving.contract.cache_format import CacheLayout
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.loading.compiled import CompileCache, compile_key, compilers, open_compile_cache, processor_of
from ray_model_serving.loading.converted import ConvertedCopies
from ray_model_serving.loading.loader import load
from ray_model_serving.loading.report import LoadedModel, LoadReport
from ray_model_serving.loading.weights import open_weights
from ray_model_serving.model import ServedModel
from ray_model_serving.onnx_model import ServedOnnxModel
from ray_model_serving.store import Snapshot

if TYPE_CHECKING:
    from ray_model_serving.loading.onnx_session import LoadedSession


@dataclass(frozen=True, kw_only=True)
class Place:
    """What of the node and of the device a model may use.

    ``layout`` is the node's cache, or None for no compile cache and no converted copies; ``budget_bytes`` is the most
    that the cache may hold. ``num_gpus`` below 1 caps torch's share of the GPU.
    """

    device: Device
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    layout: CacheLayout | None = None
    keep_converted: bool = False
    budget_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a load cost, and what to close when the model is no longer in use."""

    report: LoadReport
    copy: Snapshot | None
    compiled: CompileCache | None

    def close(self) -> None:
        for held in (self.copy, self.compiled):
            if held is not None:
                held.close()


def load_served(
    served: ServedModel, snapshot: Snapshot, *, place: Place, dtype: Dtype, host_peak_bytes: int | None = None
) -> Served:
    """Load a snapshot into a model class: sets its ``directory`` and its ``module`` or ``session``.

    Raises the errors of ``loading.errors`` and ``store.errors``.
    """
    served.directory = snapshot.path
    compiled = None
    if place.layout:
        key = compile_key(processor_of(place.device), compilers(), snapshot.snapshot_id)
        compiled = open_compile_cache(place.layout, key)
    try:
        if isinstance(served, ServedOnnxModel):
            loaded = _load_session(served, snapshot, place, dtype, host_peak_bytes, compiled)
            served.session = loaded.session
        else:
            loaded = _load_module(served, snapshot, place, dtype, host_peak_bytes)
            served.module = loaded.module
    except BaseException:
        if compiled:
            compiled.close()
        raise
    return Served(report=loaded.report, copy=loaded.copy, compiled=compiled)


def device_bytes(served: ServedModel, snapshot: Snapshot, dtype: Dtype) -> int:
    """What the weights will take on the device, from their headers. Raises the errors of ``store.errors``."""
    if isinstance(served, ServedOnnxModel):
        from ray_model_serving.loading.onnx_session import weights_bytes

        return weights_bytes(snapshot, served.onnx_file)
    weights = open_weights(snapshot.path, snapshot.manifest.files)
    return weights.checkpoint.without(served.ignore_keys).loaded_bytes(dtype)


def _load_module(
    served: ServedModel, snapshot: Snapshot, place: Place, dtype: Dtype, host_peak_bytes: int | None
) -> LoadedModel:
    copies = None
    if place.keep_converted and place.layout:
        copies = ConvertedCopies(layout=place.layout, budget_bytes=place.budget_bytes)
    return load(
        snapshot,
        served.build,
        dtype=dtype,
        device=place.device,
        host_peak_bytes=host_peak_bytes,
        ignore_keys=served.ignore_keys,
        keep_converted=copies,
        gpu_fraction=place.num_gpus if 0 < place.num_gpus < 1 else None,
    )


def _load_session(
    served: ServedOnnxModel,
    snapshot: Snapshot,
    place: Place,
    dtype: Dtype,
    host_peak_bytes: int | None,
    compiled: CompileCache | None,
) -> "LoadedSession":
    # onnxruntime is an extra: models of torch do without it.
    from ray_model_serving.loading.onnx_session import load_session

    served.prepare(snapshot.path)
    return load_session(
        snapshot,
        device=place.device,
        dtype=dtype,
        file=served.onnx_file,
        threads=int(place.num_cpus),
        prepack=served.prepack,
        host_peak_bytes=host_peak_bytes,
        engines=compiled.engines if compiled else None,
    )
