"""A snapshot's weights, whatever kind of file they are in: what there is, and each tensor when it is asked for."""

import json
import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors import SafetensorError, safe_open

from ray_model_serving.contract.cache_format import FileEntry
from ray_model_serving.contract.settings import Device
from ray_model_serving.loading import pickles
from ray_model_serving.loading.errors import UnsupportedCheckpointError
from ray_model_serving.store import checkpoint as headers
from ray_model_serving.store.checkpoint import Checkpoint
from ray_model_serving.store.disk import network_type

log = logging.getLogger(__name__)


class Weights(Protocol):
    @property
    def checkpoint(self) -> Checkpoint:
        """What there is; ``files`` says in which file."""
        ...

    @property
    def aliases(self) -> Mapping[str, str]:
        """Names of tensors that are stored under another name."""
        ...

    @property
    def mapped(self) -> bool:
        """Whether a tensor on the CPU is the file, which replicas share."""
        ...

    def tensors(self, names: Sequence[str], device: Device) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor in the type that it is stored in."""
        ...


@dataclass(frozen=True, kw_only=True)
class SafetensorsWeights:
    directory: Path
    checkpoint: Checkpoint
    aliases: Mapping[str, str]
    mapped: bool = True

    def tensors(self, names: Sequence[str], device: Device) -> Iterator[tuple[str, torch.Tensor]]:
        """One file is open at a time; mapped tensors keep their own file."""
        backend = "mmap" if self.mapped else "pread"
        for path, group in groupby(names, key=self.checkpoint.files.__getitem__):
            with _open(self.directory, path, device=device.value, backend=backend) as file:
                for name in group:
                    yield name, file.get_tensor(name)


def open_weights(directory: Path, files: Sequence[FileEntry], state_key: str | None = None) -> Weights:
    """safetensors where there are any, else pickles. No weight is read.

    On a network file system weights are read in large pieces instead of mapped. Raises the errors of
    ``store.checkpoint`` and ``loading.pickles``, and :class:`UnsupportedCheckpointError`.
    """
    network = network_type(directory)
    if network:
        log.warning(
            "%s is on %s: weights are read, not mapped, and take memory of this process; use the node's cache",
            directory, network,
        )  # fmt: skip
    paths = [entry.path for entry in files]
    names = sorted(path for path in paths if path.endswith(pickles.SUFFIXES))
    if names and not any(path.endswith(headers.SUFFIX) for path in paths):
        shards = _indexed(directory, paths) or names
        return pickles.open_pickles(directory, shards, state_key, mapped=network is None)
    checkpoint = headers.read_directory(directory, files)
    aliases = _aliases(directory, checkpoint)
    return SafetensorsWeights(directory=directory, checkpoint=checkpoint, aliases=aliases, mapped=network is None)


@contextmanager
def _open(directory: Path, path: str, **options: Any) -> Generator[Any]:
    """A safetensors file; what its library does not take is an error with the file's name."""
    try:
        with safe_open(directory / path, framework="pt", **options) as file:
            yield file
    except SafetensorError as error:
        raise UnsupportedCheckpointError(
            f"{path}: safetensors can't read it: {error}",
            hint="save it again in a type that torch has, with the version of safetensors that serves it",
        ) from error


def _aliases(directory: Path, checkpoint: Checkpoint) -> dict[str, str]:
    """What safetensors' own save_model and ``ray-model convert`` write of tied tensors: other name to stored name."""
    found: dict[str, str] = {}
    for path in set(checkpoint.files.values()):
        with _open(directory, path) as file:
            metadata = cast("Mapping[str, str]", file.metadata() or {})
        found |= {n: to for n, to in metadata.items() if to in checkpoint.tensors and n not in checkpoint.tensors}
    return found


def _indexed(directory: Path, paths: Sequence[str]) -> list[str]:
    """The shards of the one index of pickles, if there is one."""
    indexes = [path for path in paths if path.endswith(pickles.INDEX_SUFFIX)]
    if not indexes:
        return []
    try:
        document: Any = json.loads((directory / indexes[0]).read_text(encoding="utf-8"))
        parent = indexes[0].rpartition("/")[0]
        shards = sorted({f"{parent}/{shard}" if parent else str(shard) for shard in document["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedCheckpointError(f"{indexes[0]}: is not a readable index of shards ({error})") from error
    if lost := [shard for shard in shards if shard not in paths]:
        raise UnsupportedCheckpointError(
            f"{indexes[0]}: names shards that are not among the files: {', '.join(lost)}", hint="fetch them too"
        )
    return shards
