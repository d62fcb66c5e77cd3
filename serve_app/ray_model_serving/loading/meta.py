"""Builds a module on the meta device: shapes and types, no memory, no values."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.loading.errors import BuildFailedError

Build = Callable[[Path], torch.nn.Module]

_RANDOM_FILLS = frozenset(
    {"normal_", "uniform_", "bernoulli_", "exponential_", "log_normal_", "cauchy_", "geometric_", "random_"}
)


class _SkipRandomFills(TorchFunctionMode):
    """Leaves out random initialisation of meta tensors: it changes nothing there.

    With torch 2.13 the first ``normal_`` on a meta tensor imports the compiler (3 s and 85 MiB in every replica).
    """

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        arguments = kwargs or {}
        tensor = args[0] if args else arguments.get("tensor")
        fills = getattr(func, "__module__", "") == "torch.nn.init" or getattr(func, "__name__", "") in _RANDOM_FILLS
        if fills and isinstance(tensor, torch.Tensor) and tensor.is_meta:
            return tensor
        return func(*args, **arguments)


def build_on_meta(build: Build, directory: Path) -> torch.nn.Module:
    """Run ``build``. Raises :class:`BuildFailedError`, or a typed error of the model class as it came."""
    try:
        with torch.device("meta"), _SkipRandomFills():
            module = build(directory)
    except ModelServingError:
        raise
    except Exception as error:
        raise BuildFailedError(
            f"build() raised {type(error).__name__}: {error}",
            hint="it runs under torch.device('meta'): tensors have shapes and no values there",
        ) from error
    if not isinstance(module, torch.nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance] - user code
        raise BuildFailedError(f"build() returned {type(module).__name__}, must be a torch.nn.Module")
    return module
