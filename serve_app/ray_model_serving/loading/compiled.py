"""Where compilers keep what they made of a model: a directory of the node's cache, so that the next replica finds it.

Its key changes with the GPU, with the compilers and with the model: what was made for others is never even looked at.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ray_model_serving.contract.cache_format import DIRECTORY_MODE, CacheLayout
from ray_model_serving.contract.settings import Device
from ray_model_serving.store.locks import HeldLock, open_lock

log = logging.getLogger(__name__)

_COMPILERS = ("torch", "triton", "onnxruntime", "onnxruntime-gpu", "tensorrt")


@dataclass(frozen=True, kw_only=True)
class CompileCache:
    """A directory that this process may fill; the shared lock keeps eviction away until it is closed."""

    path: Path
    lock: HeldLock

    @property
    def engines(self) -> Path:
        """TensorRT's engines; ONNX Runtime has an option for it and no variable."""
        return self.path / "tensorrt"

    def environment(self) -> dict[str, str]:
        """The variables that torch's inductor and Triton read when they compile."""
        return {
            "TORCHINDUCTOR_CACHE_DIR": str(self.path / "inductor"),
            "TRITON_CACHE_DIR": str(self.path / "triton"),
        }

    def close(self) -> None:
        self.lock.release()


def compile_key(processor: Mapping[str, str], versions: Mapping[str, str], snapshot_id: str) -> str:
    """The name of the directory: one for each processor, set of compilers and model."""
    text = json.dumps([dict(processor), dict(versions), snapshot_id], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def compilers() -> dict[str, str]:
    """Versions of what compiles in this process."""
    return {name: found for name in _COMPILERS if (found := _version(name))}


def processor_of(device: Device) -> dict[str, str]:
    """What compiled code depends on: the GPU's name and compute capability, or the CPU and what it can do."""
    if device is Device.CUDA:
        import torch

        major, minor = torch.cuda.get_device_capability()
        return {"gpu": torch.cuda.get_device_name(), "capability": f"{major}.{minor}"}
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0].splitlines()
    except OSError:
        lines = []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {name: fields.get(name, "") for name in ("model name", "flags", "Features")}


def open_compile_cache(layout: CacheLayout, key: str) -> CompileCache | None:
    """Make the directory and point the compilers of this process to it, before the first of them runs.

    Variables that are set already stay. None where the cache can't be written to: compilers then use their own places.
    """
    path = layout.compiled / key
    cache = CompileCache(path=path, lock=open_lock(layout.lock(f"compiled-{key}")))
    try:
        for directory in (layout.compiled, path, cache.engines, *map(Path, cache.environment().values())):
            if not directory.is_dir():
                directory.mkdir(parents=True, exist_ok=True)
                directory.chmod(DIRECTORY_MODE)
    except OSError as error:
        cache.close()
        log.warning("no compile cache for this model, %s: %s", path, error.strerror)
        return None
    if cache.lock.try_shared():
        cache.lock.mark_use()
    for name, value in cache.environment().items():
        os.environ.setdefault(name, value)
    return cache


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
