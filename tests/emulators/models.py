"""Tiny real checkpoints, and buckets and directories filled with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from emulators.s3 import S3Emulator


@dataclass(frozen=True)
class Bucket:
    """A bucket of one test's own."""

    name: str
    s3: S3Emulator

    def put(self, files: Mapping[str, bytes], prefix: str = "m/", **arguments: Any) -> str:
        """Upload and return the model's URI; ``arguments`` go to PutObject."""
        client = self.s3.client()
        for name, content in files.items():
            client.put_object(Bucket=self.name, Key=f"{prefix}{name}", Body=content, **arguments)
        return f"s3://{self.name}/{prefix}"


def checkpoint_bytes(tensors: Mapping[str, np.ndarray]) -> bytes:
    """A safetensors file."""
    return save(dict(tensors))


def linear_model() -> dict[str, bytes]:
    """Three files of a model whose weights are those of ``torch.nn.Linear(3, 2)``."""
    weights = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.ones(2, dtype=np.float32)}
    return {
        "model.safetensors": checkpoint_bytes(weights),
        "config.json": b'{"hidden": 3}',
        "tokenizer/vocab.txt": b"a\nb\n",
    }


def large_model(mib: int = 20) -> dict[str, bytes]:
    """A checkpoint of several parts, with content that differs everywhere."""
    values = np.random.default_rng(7).standard_normal(mib * 1024**2 // 4, dtype=np.float32)
    return {"model.safetensors": checkpoint_bytes({"weight": values}), "config.json": b"{}"}


def write_files(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below a directory, which is made."""
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


def read_files(directory: Path) -> dict[str, bytes]:
    """Every file below a directory but the snapshot's record."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != "snapshot.json")
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}
