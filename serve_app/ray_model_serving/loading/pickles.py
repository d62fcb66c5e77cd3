"""Checkpoints that torch pickled, as mapped tensors: never with code, and no copy in memory but off a network mount.

``weights_only`` keeps torch from calling anything that a pickle names; ``mmap`` leaves the weights in the file.
"""

import pickle
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from ray_model_serving.contract.settings import Device
from ray_model_serving.loading.errors import UnsafeCheckpointError, UnsupportedCheckpointError
from ray_model_serving.loading.types import NAMES
from ray_model_serving.store.checkpoint import Checkpoint
from ray_model_serving.store.errors import first_few
from ray_model_serving.store.tensor_headers import TensorHeader

SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
INDEX_SUFFIX = ".bin.index.json"
# Where training frameworks keep the weights in a checkpoint that holds the optimizer too.
_WEIGHT_KEYS = ("state_dict", "model_state_dict", "model")
_ZIP_MAGIC = b"PK\x03\x04"
_READ_BYTES = 8 * 1024**2


@dataclass(frozen=True, kw_only=True)
class PickleWeights:
    """Tensors of pickled files; those that share memory are stored once, and ``aliases`` are their other names.

    Not ``mapped``, each file is read through once before the first of its tensors is copied out of it: page by page,
    as a mapping reads, network file systems are many times slower.
    """

    directory: Path
    checkpoint: Checkpoint
    aliases: Mapping[str, str]
    by_name: Mapping[str, torch.Tensor]
    mapped: bool = True
    read: set[str] = field(default_factory=set[str])
    """Files that were read through."""

    def tensors(self, names: Sequence[str], device: Device) -> Iterator[tuple[str, torch.Tensor]]:
        for name in names:
            path = self.checkpoint.files[name]
            if not self.mapped and path not in self.read:
                read_through(self.directory / path)
                self.read.add(path)
            yield name, self.by_name[name].to(device.value, copy=not self.mapped)


def open_pickles(
    directory: Path, paths: Sequence[str], key: str | None = None, *, mapped: bool = True
) -> PickleWeights:
    """The weights of all these files together; ``key`` is where in each the weights are.

    No weight is read. Not ``mapped``, tensors will be memory of this process.

    Raises :class:`UnsafeCheckpointError` or :class:`UnsupportedCheckpointError`, which name the file.
    """
    tensors: dict[str, torch.Tensor] = {}
    files: dict[str, str] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[object, ...], str] = {}
    problems: list[str] = []
    for path in paths:
        for name, tensor in _read(directory / path, path, key).items():
            if name in tensors or name in aliases:
                problems.append(f"{path}: tensor {name!r} is in {files.get(name, 'another file')} too")
                continue
            if tensor.dtype not in NAMES or tensor.layout is not torch.strided:
                problems.append(f"{path}: {name!r} is {tensor.layout} {tensor.dtype}, which safetensors can't hold")
                continue
            first = seen.setdefault(_memory(tensor, name), name)
            if first == name:
                tensors[name], files[name] = tensor, path
            else:
                aliases[name] = first
    if problems:
        raise UnsupportedCheckpointError(
            f"{len(problems)} problems in pickled weights:{first_few(problems)}",
            hint="exclude the files that do not belong to the model",
        )
    headers = {name: _header(name, tensor) for name, tensor in tensors.items()}
    checkpoint = Checkpoint(tensors=headers, files=files)
    return PickleWeights(directory=directory, checkpoint=checkpoint, aliases=aliases, by_name=tensors, mapped=mapped)


def read_through(path: Path) -> None:
    """Bring a file into the page cache in large reads, in order."""
    block = bytearray(_READ_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(block):
            pass


def _memory(tensor: torch.Tensor, name: str) -> tuple[object, ...]:
    """Equal for two tensors that are one; an empty tensor is like no other."""
    if not tensor.numel():
        return (name,)
    place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset())
    return (*place, tensor.dtype, tuple(tensor.shape), tensor.stride())


def _header(name: str, tensor: torch.Tensor) -> TensorHeader:
    size_bytes = tensor.numel() * tensor.element_size()
    return TensorHeader(name=name, dtype=NAMES[tensor.dtype], shape=tuple(tensor.shape), size_bytes=size_bytes)


def _read(path: Path, shown: str, key: str | None) -> Mapping[str, torch.Tensor]:
    with path.open("rb") as file:
        if file.read(len(_ZIP_MAGIC)) != _ZIP_MAGIC:
            raise UnsupportedCheckpointError(
                f"{shown}: is not a zip archive, so it is a pickle from before torch 1.6 or no checkpoint at all",
                hint="open it once where you trust it with torch.load and save it again with torch.save",
            )
    try:
        with warnings.catch_warnings():
            # torch would go on with TorchScript, which is code, after a warning.
            warnings.filterwarnings("error", message=".*TorchScript")
            content: object = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise UnsafeCheckpointError(
            f"{shown}: holds more than weights ({_what(str(error))}), which would run as code when it is read",
            hint="save its state_dict() alone, or exclude the file if it is not part of the model",
        ) from error
    except (Warning, RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError, IndexError) as error:
        raise UnsupportedCheckpointError(
            f"{shown}: torch can't map it as weights: {str(error).splitlines()[0] if str(error) else repr(error)}",
            hint="save its state_dict() again with torch.save; TorchScript and compressed archives are not weights",
        ) from error
    return _state(content, shown, key)


def _what(text: str) -> str:
    """The name of the function or class that a pickle wants, out of torch's text."""
    found = re.search(r"GLOBAL ([\w.]+)", text)
    return found.group(1) if found else text.strip().splitlines()[0]


def _state(content: object, shown: str, key: str | None) -> Mapping[str, torch.Tensor]:
    """Names to tensors, from a state dict or from a training checkpoint that has one."""
    given: Mapping[str, Any] = cast("Mapping[str, Any]", content) if isinstance(content, Mapping) else {}
    keys = (key,) if key else _WEIGHT_KEYS
    states = [state for state in ({} if key else given, *map(given.get, keys)) if _is_state(state)]
    if len(states) != 1:
        what = list(map(str, given)) if given else [type(content).__name__]
        raise UnsupportedCheckpointError(
            f"{shown}: no or more than one mapping of names to tensors in it, neither itself nor under "
            f"{' or '.join(map(repr, keys))}; it has:{first_few(what)}",
            hint="name the right key (ray-model convert --state-key), or save the model's state_dict() alone",
        )
    return {name: tensor.detach() for name, tensor in cast("Mapping[str, torch.Tensor]", states[0]).items()}


def _is_state(value: object) -> bool:
    if not isinstance(value, Mapping) or not value:
        return False
    return all(isinstance(name, str) and isinstance(item, torch.Tensor) for name, item in value.items())
