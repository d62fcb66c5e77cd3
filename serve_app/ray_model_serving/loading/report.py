"""What a load hands back: the module, and what it cost."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ray_model_serving.store import Snapshot

PHASES = ("map", "convert", "transfer", "total")


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """Seconds of each phase, and memory in bytes; the peaks are over what the process had before the load."""

    seconds: Mapping[str, float]
    model_bytes: int
    """Parameters and buffers of the module; tied ones once."""
    peak_anon_bytes: int
    peak_file_bytes: int
    gpu_peak_bytes: int = 0
    """What torch had allocated on the GPU at the peak, the process's other models included; 0 without a GPU."""

    def to_json(self) -> dict[str, object]:
        """The part that a load adds to the document of ``ray-model load --json``."""
        return {
            "seconds": {phase: round(self.seconds.get(phase, 0.0), 4) for phase in PHASES},
            "memory": {
                "model_bytes": self.model_bytes,
                "peak_anon_bytes": self.peak_anon_bytes,
                "peak_file_bytes": self.peak_file_bytes,
                "gpu_peak_bytes": self.gpu_peak_bytes,
            },
        }


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A module that is ready for inference: weights in place, ``eval()``, no gradients."""

    module: torch.nn.Module
    report: LoadReport
    copy: Snapshot | None = None
    """The converted copy whose files the module maps; close it with the snapshot, after the module."""
