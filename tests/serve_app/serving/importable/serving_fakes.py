"""Small real models for replicas, which import them by name; the folder is on the Ray workers' path."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.model import ServedModel

if TYPE_CHECKING:
    import torch


class Times(ServedModel):
    """Multiplies numbers by its only weight.

    ``config.json`` may name ``log``, a file that gets a line per build, and ``hold``, a named pipe: the build then
    waits until the other side closes it.
    """

    def build(self, directory: Path) -> "torch.nn.Module":
        import torch  # late, so that a replica that fails before its load fails fast

        config = json.loads((directory / "config.json").read_text())
        if "log" in config:
            with Path(config["log"]).open("a") as log:
                log.write(f"{os.getpid()}\n")
        if "hold" in config:
            Path(config["hold"]).read_text()
        return torch.nn.Linear(1, 1, bias=False)

    def warm_up(self) -> None:
        self.predict_batch([0.0] * self.max_batch_size)

    def example_inputs(self) -> Sequence[Any]:
        return [3]

    def predict_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        import torch

        with torch.inference_mode():
            return self.module(torch.tensor([[float(value)] for value in inputs]))[:, 0].tolist()


class FailsAtFirst(Times):
    """The first build of a node fails as a store does that is busy."""

    def build(self, directory: Path) -> "torch.nn.Module":
        first = not Path(json.loads((directory / "config.json").read_text())["log"]).exists()
        module = super().build(directory)
        if first:
            raise BusyStoreError("503 Slow Down")
        return module


class BusyStoreError(ModelServingError):
    kind = "busy_store"
    permanent = False


class BrokenBuild(Times):
    def build(self, directory: Path) -> "torch.nn.Module":
        raise ValueError("config.json names no layers")


class Hungry(Times):
    """Takes memory when it is warmed up."""

    TAKEN_BYTES = 64 * 1024**2

    def warm_up(self) -> None:
        self.taken = bytearray(b"x") * self.TAKEN_BYTES
