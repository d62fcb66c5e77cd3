"""Writes a model's weights again as safetensors, in another type or other shards, a block of one tensor at a time.

Blocks bound the memory: neither a tensor nor a file is ever whole in it.
"""

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.loading.types import NAMES, TORCH
from ray_model_serving.loading.weights import Weights
from ray_model_serving.store.checkpoint import Checkpoint, is_converted, target_bytes
from ray_model_serving.store.disk import allocate, raise_if_full
from ray_model_serving.store.tensor_headers import DTYPE_BYTES, TensorHeader

INDEX_NAME = "model.safetensors.index.json"
BLOCK_BYTES = 4 * 1024**2
_ALIGNMENT_BYTES = 8

OnBytes = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """What is written: the tensors of each file, and the type of those that are converted."""

    weights: Weights
    dtype: Dtype
    shards: Mapping[str, Sequence[str]]
    block_bytes: int = BLOCK_BYTES

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors, without headers."""
        return self.weights.checkpoint.loaded_bytes(self.dtype)

    def file_sizes(self) -> dict[str, int]:
        """Bytes of each file that is written, header and all."""
        return {path: _file_bytes(*self._layout(path)) for path in self.shards}

    def write(self, directory: Path, on_bytes: OnBytes = lambda _: None, *, index: bool) -> None:
        """Write every shard and, if asked for, their index. Raises NoSpaceError. Nothing is synced."""
        for path in self.shards:
            self._write_shard(directory / path, path, on_bytes)
        if index:
            weight_map = {name: path for path, names in self.shards.items() for name in sorted(names)}
            document = {"metadata": {"total_size": self.size_bytes}, "weight_map": weight_map}
            (directory / INDEX_NAME).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    def _layout(self, path: str) -> tuple[bytes, Sequence[TensorHeader]]:
        """A shard's header, and its tensors in the order of their data."""
        tensors = [_target(self.weights.checkpoint.tensors[name], self.dtype) for name in self.shards[path]]
        # Wide types first, as safetensors itself writes: every tensor then begins at a multiple of its element.
        tensors.sort(key=lambda tensor: (-DTYPE_BYTES[tensor.dtype], tensor.name))
        stored = {tensor.name for tensor in tensors}
        tied = {name: to for name, to in self.weights.aliases.items() if to in stored}
        return _header(tensors, tied), tensors

    def _write_shard(self, target: Path, path: str, on_bytes: OnBytes) -> None:
        header, tensors = self._layout(path)
        size_bytes = _file_bytes(header, tensors)
        with os.fdopen(allocate(target, size_bytes), "wb") as file:
            try:
                file.write(header)
                for name, tensor in self.weights.tensors([tensor.name for tensor in tensors], Device.CPU):
                    converted = is_converted(self.weights.checkpoint.tensors[name], self.dtype)
                    for block in _blocks(tensor, TORCH[self.dtype] if converted else tensor.dtype, self.block_bytes):
                        file.write(block)
                        on_bytes(block.nbytes)
            except OSError as error:
                raise_if_full(error, target, size_bytes)
                raise


def pack(checkpoint: Checkpoint, dtype: Dtype, max_shard_bytes: int) -> dict[str, list[str]]:
    """Tensors in their order to shards of at most that size; a larger tensor has a shard of its own."""
    groups: list[list[str]] = []
    filled = 0
    for name, tensor in checkpoint.tensors.items():
        size_bytes = target_bytes(tensor, dtype)
        if not groups or filled + size_bytes > max_shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size_bytes
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {f"model-{number:05}-of-{len(groups):05}.safetensors": names for number, names in enumerate(groups, 1)}


def copy_files(source: Path, paths: Sequence[str], target: Path) -> None:
    """Copy what is not weights, such as the configuration and the tokenizer."""
    for path in paths:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, target / path)


def _target(tensor: TensorHeader, dtype: Dtype) -> TensorHeader:
    if not is_converted(tensor, dtype):
        return tensor
    return replace(tensor, dtype=NAMES[TORCH[dtype]], size_bytes=target_bytes(tensor, dtype))


def _header(tensors: Sequence[TensorHeader], metadata: Mapping[str, str]) -> bytes:
    document: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    position = 0
    for tensor in tensors:
        end = position + tensor.size_bytes
        document[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return struct.pack("<Q", len(text)) + text


def _file_bytes(header: bytes, tensors: Sequence[TensorHeader]) -> int:
    return len(header) + sum(tensor.size_bytes for tensor in tensors)


def _blocks(tensor: torch.Tensor, dtype: torch.dtype, block_bytes: int) -> Iterator[memoryview]:
    """The bytes of a tensor in ``dtype``, row by row where its memory is not in order."""
    elements = max(1, block_bytes // max(tensor.element_size(), dtype.itemsize))
    if tensor.is_contiguous():
        flat = tensor.as_strided((tensor.numel(),), (1,))  # reshape keeps a lone element's odd stride
        for start in range(0, flat.numel(), elements):
            part = flat[start : start + elements].to(dtype)
            yield part.view(torch.uint8).numpy().data
    elif tensor.numel() <= elements:
        yield from _blocks(tensor.contiguous(), dtype, block_bytes)
    else:
        rows = max(1, elements * tensor.shape[0] // tensor.numel())
        for part in tensor.split(rows):
            yield from _blocks(part if rows > 1 else part[0], dtype, block_bytes)
