"""The model of the serving benchmarks, for ours and for plain Serve alike, and the settings of ours.

A forward pass takes a fixed time, whatever the machine does: it sleeps, so that few CPUs are not the limit. Its
``config.json`` says how long, what it answers, and where loads are logged.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import checkpoints
from benchmarks.measuring import MIB
from ray_model_serving.model import ServedModel

if TYPE_CHECKING:
    import torch
    from ray.serve import Application

SMALLEST_MIB = checkpoints.LAYER_MIB


def make_model(directory: Path, *, mib: int = SMALLEST_MIB, predict_s: float, version: str, log: Path) -> None:
    """Write a checkpoint whose forward pass takes ``predict_s`` and answers ``version``."""
    checkpoints.make_checkpoint(directory, mib)
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {"predict_s": predict_s, "version": version, "log": str(log)}
    path.write_text(json.dumps(config), encoding="utf-8")


class Forward:
    """What both sides ask: one sleep for a batch, one answer for each input."""

    def __init__(self, directory: Path) -> None:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        self._predict_s: float = config["predict_s"]
        self._version: str = config["version"]
        self._log = Path(config["log"])

    def predict(self, count: int) -> list[str]:
        if self._predict_s:
            time.sleep(self._predict_s)
        return [self._version] * count

    def mark(self, event: str) -> None:
        """Log that a load begins or ended, in one write that no other process can split."""
        line = json.dumps({"at": time.monotonic(), "pid": os.getpid(), "event": event}) + "\n"
        with self._log.open("a", encoding="utf-8") as log:
            log.write(line)


class Timed(ServedModel):
    """Ours: what a model engineer writes, and a mark where the library begins and ends a load."""

    def build(self, directory: Path) -> "torch.nn.Module":
        self._forward = forward = Forward(directory)
        forward.mark("begin")
        module = checkpoints.build_from(directory)
        put_in_mode = module.train

        def loaded(mode: bool = True) -> "torch.nn.Module":
            # eval() is the last step of a load: the library leaves the module in that mode.
            forward.mark("end")
            return put_in_mode(mode)

        module.train = loaded
        return module

    def warm_up(self) -> None:
        self.predict_batch([0] * self.max_batch_size)

    def predict_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return self._forward.predict(len(inputs))


def most_at_once(log: Path) -> int:
    """Loads that were under way at the same time, at most; a load that never ended counts to the end."""
    events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    running: set[int] = set()
    most = 0
    for event in sorted(events, key=lambda one: one["at"]):
        if event["event"] == "begin":
            running.add(event["pid"])
        else:
            running.discard(event["pid"])
        most = max(most, len(running))
    return most


def settings(
    *,
    uri: str,
    cache_root: str,
    mib: int = SMALLEST_MIB,
    min_replicas: int = 1,
    max_replicas: int = 1,
    num_cpus: float = 0.2,
    limits: dict[str, Any] | None = None,
    autoscaling: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """ServingSettings in plain form. What is not said here is the package's default."""
    model = {
        "name": "model",
        "route": "/",
        "model_class": f"{__name__}:Timed",
        "uri": uri,
        "device": "cpu",
        "num_cpus": num_cpus,
        "weights_bytes": mib * MIB,
        "host_peak_bytes": 64 * MIB,
        "request_bytes": MIB,
        "min_replicas": min_replicas,
        "max_replicas": max_replicas,
        "limits": limits or {},
        "autoscaling": autoscaling or {},
    }
    return {
        "models": [model],
        "cache_root": cache_root,
        "cache_budget_bytes": 16 * 1024 * MIB,
        "cache_medium": "directory",
        "load_deadline_s": 120,
    }


def ours(route: str, **given: Any) -> "Application":
    """The application in the public way: settings in, ``ray_model_serving.app:build``."""
    from ray_model_serving.app import build

    arguments = settings(**given)
    arguments["models"][0]["route"] = route
    return build(arguments)
