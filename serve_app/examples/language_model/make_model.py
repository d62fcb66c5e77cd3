"""Makes the example's files: weights from a fixed seed, which answer nonsense, and always the same."""

import json
import sys
from pathlib import Path

import torch
from language_model.model import Network
from safetensors.torch import save_file

CONFIG = {"size": 32, "heads": 4, "layers": 2}


def make(directory: Path) -> None:
    """Write ``model.safetensors`` and ``config.json`` into ``directory``, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        weights = Network(**CONFIG).state_dict()
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(CONFIG))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
