"""A module that is nothing but the checkpoint's tensors under their names, for a load without a model class."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ray_model_serving.loading.errors import BuildFailedError
from ray_model_serving.loading.weights import open_weights
from ray_model_serving.store import Snapshot
from ray_model_serving.store.checkpoint import Checkpoint


def build_plain(snapshot: Snapshot) -> Callable[[Path], torch.nn.Module]:
    """A ``build`` for :func:`load` that takes every tensor of the snapshot."""

    def build(directory: Path) -> torch.nn.Module:
        return _tree(open_weights(directory, snapshot.manifest.files).checkpoint)

    return build


def _tree(checkpoint: Checkpoint) -> torch.nn.Module:
    root = torch.nn.Module()
    for name, tensor in checkpoint.tensors.items():
        try:
            _add(root, name.split("."), torch.empty(tensor.shape))
        except KeyError as error:
            raise BuildFailedError(
                f"tensor {name!r} has a name that no plain module can hold: {error}", hint="name the model class"
            ) from error
    return root


def _add(module: torch.nn.Module, path: Sequence[str], value: torch.Tensor) -> None:
    for parent in path[:-1]:
        child = dict(module.named_children()).get(parent)
        if child is None:
            child = torch.nn.Module()
            module.add_module(parent, child)
        module = child
    module.register_buffer(path[-1], value)
