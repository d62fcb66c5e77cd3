"""What a model is and needs, from its listing and the headers of its weights."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ray_model_serving.cli.output import amount
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.store import ModelStore
from ray_model_serving.store.checkpoint import Checkpoint, read_checkpoint
from ray_model_serving.store.report import check_of


def inspection(store: ModelStore, uri: str, include: Sequence[str], exclude: Sequence[str]) -> dict[str, Any]:
    """The document of ``ray-model inspect --json``. Raises the errors of ``store.errors``."""
    manifest = store.resolve(uri, include=include, exclude=exclude)
    checkpoint = read_checkpoint(manifest.files, lambda path, length: store.read_start(uri, path, length))
    return {
        "uri": uri,
        "snapshot_id": manifest.snapshot_id,
        "bytes": manifest.size_bytes,
        "files": [
            {"path": entry.path, "bytes": entry.size_bytes, "checked_by": check_of(entry)} for entry in manifest.files
        ],
        "weights": {
            "tensors": len(checkpoint.tensors),
            "bytes": checkpoint.size_bytes,
            "bytes_by_dtype": checkpoint.bytes_by_dtype(),
        },
        "memory": {dtype.value: _needs(checkpoint, dtype) for dtype in Dtype},
    }


def _needs(checkpoint: Checkpoint, dtype: Dtype) -> dict[str, int]:
    return {
        "weights_bytes": checkpoint.loaded_bytes(dtype),
        "host_peak_bytes_cpu": checkpoint.host_peak_bytes(dtype, Device.CPU),
        "host_peak_bytes_cuda": checkpoint.host_peak_bytes(dtype, Device.CUDA),
    }


def print_inspection(document: dict[str, Any]) -> None:
    """The same as tables."""
    console = Console()
    weights = document["weights"]
    console.print(f"{document['uri']}  {amount(document['bytes'])} in {len(document['files'])} files", highlight=False)
    console.print(f"snapshot id {document['snapshot_id']}  (pins this content)", highlight=False)
    types = ", ".join(f"{name} {amount(size)}" for name, size in weights["bytes_by_dtype"].items())
    console.print(f"{weights['tensors']} tensors, {types}", highlight=False)
    files = Table("file", "size", "checked by")
    for entry in document["files"]:
        files.add_row(entry["path"], amount(entry["bytes"]), entry["checked_by"])
    console.print(files)
    needs = Table("loaded as", "weights", "host peak on cpu", "host peak on cuda", title="memory of a load, anonymous")
    for dtype, need in document["memory"].items():
        needs.add_row(dtype, *(amount(size) for size in need.values()))
    console.print(needs)
