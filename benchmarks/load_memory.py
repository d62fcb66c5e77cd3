"""Peak anonymous memory of a load, over the bytes of the model that results, and the seconds it takes.

Every case runs in a process of its own, on a file that the page cache holds; cases are interleaved.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import measuring, peers
from benchmarks.children import ROOT, run_child

if TYPE_CHECKING:
    import torch

LAYERS = 16


def make_model(folder: Path, mib: int) -> None:
    """The same float32 weights as safetensors and as a pickle."""
    import torch
    from safetensors.torch import save_file

    width = int((mib * measuring.MIB / 4 / LAYERS) ** 0.5)
    weights = {f"{layer}.weight": torch.randn(width, width) for layer in range(LAYERS)}
    (folder / "safetensors").mkdir()
    save_file(weights, folder / "safetensors" / "model.safetensors")
    torch.save(weights, folder / "model.pt")


def build(width: int) -> "torch.nn.Module":
    """A stack of square layers."""
    import torch

    return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(LAYERS)))


def ours(folder: Path, width: int, dtype: str) -> "torch.nn.Module":
    """ray_model_serving: a module without memory, the file mapped, conversion one tensor at a time."""
    from ray_model_serving.contract.settings import Device, Dtype
    from ray_model_serving.loading import load
    from ray_model_serving.store import ModelStore

    snapshot = ModelStore(folder / "cache").ensure(f"file://{folder}/safetensors")
    return load(snapshot, lambda _: build(width), dtype=Dtype(dtype), device=Device.CPU).module


def common_flow(folder: Path, width: int, half: bool) -> "torch.nn.Module":
    """torch.load into memory, a module with weights of its own, load_state_dict, then the conversion."""
    import torch

    state = torch.load(folder / "model.pt", weights_only=True)
    module = build(width)
    module.load_state_dict(state)
    return module.half() if half else module


def load_file_and_copy(folder: Path, width: int, half: bool) -> "torch.nn.Module":
    """safetensors' load_file, copied into a module that has its own weights."""
    from safetensors.torch import load_file

    module = build(width)
    module.load_state_dict(load_file(folder / "safetensors" / "model.safetensors"))
    return module.half() if half else module


def runai(folder: Path, width: int) -> "torch.nn.Module":
    """Run:ai's streamer from the file; its buffer is used again, so each tensor is copied."""
    from runai_model_streamer import (  # pyright: ignore[reportMissingImports] - only in the peers' environment
        SafetensorsStreamer,
    )

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(str(folder / "safetensors" / "model.safetensors"))
        return assigned(width, {name: tensor.clone() for name, tensor in streamer.get_tensors()})


def fastsafetensors(folder: Path, width: int) -> "torch.nn.Module":
    """fastsafetensors without GPU Direct; its buffer goes when it is closed, so each tensor is copied."""
    from fastsafetensors import fastsafe_open  # pyright: ignore[reportMissingImports] - only in the peers' environment

    with fastsafe_open([str(folder / "safetensors" / "model.safetensors")], nogds=True, device="cpu") as file:
        return assigned(width, {name: file.get_tensor(name).clone().detach() for name in list(file.keys())})


def assigned(width: int, tensors: "dict[str, torch.Tensor]") -> "torch.nn.Module":
    """A module without memory of its own that takes the tensors."""
    import torch

    with torch.device("meta"):
        module = build(width)
    module.load_state_dict(tensors, assign=True)
    return module


CASES: dict[str, Callable[[Path, int], "torch.nn.Module"]] = {
    "ours, float32": lambda folder, width: ours(folder, width, "auto"),
    "safetensors load_file + copy, float32": lambda folder, width: load_file_and_copy(folder, width, False),
    "torch.load + load_state_dict, float32": lambda folder, width: common_flow(folder, width, False),
    "runai-model-streamer, float32": runai,
    "fastsafetensors, float32": fastsafetensors,
    "ours, to float16": lambda folder, width: ours(folder, width, "float16"),
    "safetensors load_file + copy, to float16": lambda folder, width: load_file_and_copy(folder, width, True),
    "torch.load + load_state_dict, to float16": lambda folder, width: common_flow(folder, width, True),
}


def run_case(name: str, folder: Path, mib: int) -> None:
    """In the child: load once and print what it took."""
    import torch

    from ray_model_serving.loading.sampler import PeakSampler

    width = int((mib * measuring.MIB / 4 / LAYERS) ** 0.5)
    torch.nn.Linear(2, 2)(torch.ones(2))  # whatever torch sets up once is not the load's
    with PeakSampler() as sampler:
        started = time.perf_counter()
        module = CASES[name](folder, width)
        seconds = time.perf_counter() - started
        inputs = torch.ones(1, width, dtype=next(module.parameters()).dtype)
        with torch.inference_mode():
            module(inputs)  # touches every weight
    model_bytes = sum(parameter.nbytes for parameter in module.parameters())
    print(json.dumps({"seconds": seconds, "peak": sampler.peak_anon_bytes, "model": model_bytes}), flush=True)


def measure(name: str, folder: Path, mib: int) -> dict[str, float]:
    """One round of one case, in a fresh process."""
    is_peer = CASES[name] in (runai, fastsafetensors)
    return run_child(
        "benchmarks.load_memory",
        ["--case", name, "--folder", str(folder), "--mib", str(mib)],
        python=peers.python_of(peers.CLIENTS) if is_peer else sys.executable,
        env={"PYTHONPATH": str(ROOT / "serve_app")},  # for the sampler, in the peers' environment too
    )


def run(arguments: argparse.Namespace) -> str:
    """The section of the report."""
    cases = measuring.selected(list(CASES), arguments.cases)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_model(folder, arguments.mib)
        found = measuring.interleave(
            cases, arguments.rounds, lambda name: measure(name, folder, arguments.mib), "memory"
        )
    rows = [
        [name, f"{found.spread(name, lambda one: one['peak'] / one['model']):.2f}",
         f"{found.spread(name, lambda one: one['seconds']):.2f}"]
        for name in found.results
    ]  # fmt: skip
    header = ["load", "peak anonymous / model", "seconds"]
    shown = measuring.table(header, [*rows, *measuring.failure_rows(found.failures, len(header))])
    return f"A float32 checkpoint of {arguments.mib} MiB in the page cache:\n\n{shown}"


def options() -> argparse.ArgumentParser:
    """Command line; its defaults are what ``python -m benchmarks`` runs."""
    parser = measuring.parser(__doc__, rounds=5)
    parser.add_argument("--mib", type=int, default=512, help="size of the float32 checkpoint (default %(default)s)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    arguments = options().parse_args()
    if arguments.case:
        run_case(arguments.case, arguments.folder, arguments.mib)
        return
    print(measuring.environment() + "\n")
    print(run(arguments))


if __name__ == "__main__":
    main()
