"""The class that a model engineer writes: how a model is built, warmed up and asked."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch


class ServedModel(ABC):
    """One model behind one route. The library fetches the files, loads the weights, batches requests and keeps limits.

    The library creates one instance a replica and sets the attributes below. One thread, not the event loop's, builds,
    loads, warms up and predicts, so a model needs no lock and may block.
    """

    ignore_keys: ClassVar[Sequence[str]] = ()
    """Patterns of the checkpoint's tensors that the module does not have, such as ``pooler.*``."""

    directory: Path
    """The model's files, read-only; set before :meth:`build`."""
    max_batch_size: int
    """Most inputs that one :meth:`predict_batch` gets; set before :meth:`build`."""
    module: "torch.nn.Module"
    """What :meth:`build` returned, with its weights, on its device, in evaluation mode; set before :meth:`warm_up`."""

    @abstractmethod
    def build(self, directory: Path) -> "torch.nn.Module":
        """The empty module, its parameters named as in the checkpoint; tokenizers and the like are read here too.

        Runs under ``torch.device("meta")``, so no weight takes memory here. A tensor that the checkpoint does not hold
        is not created here but where it is used: it would stay without data.
        """

    @abstractmethod
    def warm_up(self) -> None:
        """One real prediction at the largest batch, so that no request pays for first-time set-up."""

    @abstractmethod
    def predict_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """One output for each input, in order. Both are JSON values."""

    def problem_with(self, value: Any) -> str | None:
        """What is wrong with one input, or None. A request with a bad input is refused before it joins a batch.

        Runs on the event loop, and before the model is loaded: quick, and without what :meth:`build` sets.
        """
        del value
        return None

    def example_inputs(self) -> Sequence[Any] | None:
        """Inputs of a small valid request, which ``ray-model warmup`` sends at the end; None for none.

        Runs before the model is loaded, so without what :meth:`build` sets.
        """
        return None

    def cost(self, value: Any) -> int:
        """What one input costs in a batch, such as its tokens or pixels, at least 1; ``limits.max_batch_cost`` bounds
        the sum. Runs where :meth:`problem_with` runs, after it.
        """
        del value
        return 1
