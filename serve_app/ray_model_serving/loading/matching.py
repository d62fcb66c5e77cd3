"""Does the checkpoint fit the module? Everything that does not is found before a weight is read, and said at once."""

from collections.abc import Mapping

import torch

from ray_model_serving.loading.errors import CheckpointMismatchError, LeftOnMetaError
from ray_model_serving.store.checkpoint import Checkpoint
from ray_model_serving.store.errors import first_few


def tied_names(module: torch.nn.Module) -> dict[str, str]:
    """Each parameter's name to the first name of the same parameter, such as an output layer to its embedding."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }


def match(module: torch.nn.Module, checkpoint: Checkpoint, aliases: Mapping[str, str] | None = None) -> dict[str, str]:
    """Every tensor that the module wants to the checkpoint's name for it; they differ for tied weights only.

    ``aliases`` are names of tensors that the checkpoint has under another name, though the module does not tie them.
    Raises :class:`CheckpointMismatchError` with missing, unexpected and wrongly shaped tensors.
    """
    wanted = {name: tuple(value.shape) for name, value in module.state_dict().items() if hasattr(value, "shape")}
    canonical = tied_names(module)
    stored: dict[str, str] = {}
    for name in wanted:
        if name in checkpoint.tensors:
            stored.setdefault(canonical.get(name, name), name)
    others = {name: to for name, to in (aliases or {}).items() if to in checkpoint.tensors}
    sources = {name: stored.get(canonical.get(name, name), others.get(name)) for name in wanted}
    missing = [name for name, source in sources.items() if source is None]
    unexpected = [name for name in checkpoint.tensors if name not in wanted]
    misshapen = [
        f"{name}: the model has {list(shape)}, the checkpoint {list(found.shape)}"
        for name, shape in wanted.items()
        if (found := checkpoint.tensors.get(name) or checkpoint.tensors.get(others.get(name, ""))) is not None
        and found.shape != shape
    ]
    _raise_if_any({"missing": missing, "unexpected": unexpected, "wrongly shaped": misshapen})
    return {name: source for name, source in sources.items() if source is not None}


def check_tied(names: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Weights that are one in the model may be stored twice, but must not differ: one of them would be lost.

    ``names`` is what :func:`match` returned.
    """
    differing = [
        f"{name} is one with {source} in the model and differs from it in the checkpoint"
        for name, source in names.items()
        if name != source and name in tensors and not torch.equal(tensors[name], tensors[source])
    ]
    _raise_if_any({"tied": differing})


def check_complete(module: torch.nn.Module) -> None:
    """Raises :class:`LeftOnMetaError` with every tensor that has no value after the load."""
    named = [*module.named_parameters(), *module.named_buffers()]
    left = [name for name, tensor in named if tensor.is_meta]
    if left:
        raise LeftOnMetaError(
            f"{len(left)} tensors have no value after the load:{first_few(left)}",
            hint="they are not in the checkpoint (non-persistent buffers are not); give them a device in build(), such "
            "as torch.arange(n, device='cpu'), or compute them in forward()",
        )


def _raise_if_any(problems: Mapping[str, list[str]]) -> None:
    texts = [f"\n {len(items)} {what}:{first_few(items)}" for what, items in problems.items() if items]
    if texts:
        raise CheckpointMismatchError(
            f"the checkpoint does not fit the model:{''.join(texts)}",
            hint="build the model that the checkpoint was saved from; what may be left over goes into ignore_keys",
        )
