"""The class that a model engineer writes for an ONNX model: what is asked is a session instead of a module."""

from abc import ABC
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn

from ray_model_serving.model import ServedModel

if TYPE_CHECKING:
    import onnxruntime


class ServedOnnxModel(ServedModel, ABC):
    """A :class:`ServedModel` that ONNX Runtime runs; write ``warm_up`` and ``predict_batch``, and no ``build``.

    The model's ``exclude`` must let ``*.onnx`` through, which its default does not. The type of the weights is the
    file's own, so ``dtype`` is ``auto``.
    """

    onnx_file: ClassVar[str | None] = None
    """Path below :attr:`directory`; not needed where there is only one ``.onnx`` file."""
    prepack: ClassVar[bool] = False
    """Let ONNX Runtime copy weights into an order that suits the CPU better. Without it, weights in an external data
    file are mapped, and the replicas of a node share them."""

    session: "onnxruntime.InferenceSession"
    """The loaded model, on its device; set before :meth:`warm_up`."""

    def prepare(self, directory: Path) -> None:
        """Read tokenizers and the like; runs before the session is made."""

    def build(self, directory: Path) -> NoReturn:
        raise TypeError(f"{type(self).__name__} is an ONNX model, which has a session and no module ({directory})")
