"""Does the checkpoint fit the module? Everything that does not is found before a weight is read, and said at once."""

from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch.nn.parameter import is_lazy

from ray_model_serving.loading.errors import BuildFailedError, CheckpointMismatchError, LeftOnMetaError
from ray_model_serving.store.checkpoint import Checkpoint
from ray_model_serving.store.errors import first_few

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""An integer of the same size, by bytes of an element."""


Named = Sequence[tuple[str, torch.Tensor]]
"""Parameters and buffers of a module under all their names; walking a module for them is what a warm load waits for."""


def all_names(module: torch.nn.Module) -> Named:
    """Every parameter and buffer, those with several names under each."""
    named = chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return list(named)


def tied_names(named: Named) -> dict[str, str]:
    """Each tensor's name to the first name of the same tensor, such as an output layer to its embedding.

    Buffers count as parameters do: position tables are shared as well.
    """
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


def check_shapes(named: Named) -> None:
    """Raises :class:`BuildFailedError` for a module whose tensors get their shapes in the first forward only."""
    lazy = [name for name, tensor in named if is_lazy(tensor)]
    if lazy:
        raise BuildFailedError(
            f"build() returned a module with {len(lazy)} tensors that have no shape yet:{first_few(lazy)}",
            hint="lazy modules such as nn.LazyLinear learn their shapes in a forward, and the checkpoint is compared "
            "before it; use nn.Linear and its kind with the sizes of the model's configuration",
        )


def match(
    module: torch.nn.Module, canonical: Mapping[str, str], checkpoint: Checkpoint, aliases: Mapping[str, str]
) -> dict[str, str]:
    """Every tensor that the module wants to the checkpoint's name for it; they differ for tied weights only.

    ``canonical`` is what :func:`tied_names` returned; ``aliases`` are names of tensors that the checkpoint has under
    another name, though the module does not tie them.
    Raises :class:`CheckpointMismatchError` with missing, unexpected and wrongly shaped tensors.
    """
    wanted = {name: tuple(value.shape) for name, value in module.state_dict().items() if hasattr(value, "shape")}
    stored: dict[str, str] = {}
    for name in wanted:
        if name in checkpoint.tensors:
            stored.setdefault(canonical.get(name, name), name)
    others = {name: to for name, to in aliases.items() if to in checkpoint.tensors}
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
        if name != source and name in tensors and not _same_bits(tensors[name], tensors[source])
    ]
    _raise_if_any({"tied": differing})


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equality of what is stored: as numbers, a NaN would differ from its own copy."""
    if one.dtype != other.dtype:
        return False
    bits = _BITS.get(one.element_size(), one.dtype)
    return torch.equal(one.view(bits), other.view(bits))


def check_complete(named: Named) -> None:
    """Raises :class:`LeftOnMetaError` with every tensor that has no value after the load."""
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
