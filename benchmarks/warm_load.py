"""Seconds of a load whose file is in the page cache, beside the same by hand: safetensors' load_file and assign."""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import measuring
from benchmarks.checkpoints import build_from, load_directory, make_checkpoint
from benchmarks.children import run_child

if TYPE_CHECKING:
    import torch

Run = Callable[[], "torch.nn.Module"]


def by_hand(directory: Path) -> Run:
    """What a careful engineer writes; imports first."""
    from safetensors.torch import load_file as _load_file

    del _load_file
    return lambda: load_directory(directory)


def ours(directory: Path) -> Run:
    """ray_model_serving's load of a snapshot that is there, with its checks, memory bounds and report."""
    from ray_model_serving.contract.settings import Device, Dtype
    from ray_model_serving.loading import load
    from ray_model_serving.store import ModelStore

    snapshot = ModelStore(directory.parent / "cache").ensure(f"file://{directory}")
    return lambda: load(snapshot, build_from, dtype=Dtype.AUTO, device=Device.CPU).module


def ours_with_ensure(directory: Path) -> Run:
    """The same from the URI on."""
    from ray_model_serving.contract.settings import Device, Dtype
    from ray_model_serving.loading import load
    from ray_model_serving.store import ModelStore

    def run() -> "torch.nn.Module":
        snapshot = ModelStore(directory.parent / "cache").ensure(f"file://{directory}")
        return load(snapshot, build_from, dtype=Dtype.AUTO, device=Device.CPU).module

    return run


CASES: dict[str, Callable[[Path], Run]] = {
    "ours, load": ours,
    "ours, ensure and load": ours_with_ensure,
    "safetensors load_file + assign": by_hand,
}


def run_case(name: str, directory: Path) -> None:
    """In the child: one load before the clock, so that the second is warm, then the median of some."""
    import torch

    torch.nn.Linear(2, 2)(torch.ones(2))
    run = CASES[name](directory)
    seconds: list[float] = []
    for _ in range(6):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"first": seconds[0], "seconds": measuring.Spread.of(seconds[1:]).median}), flush=True)


def run(arguments: argparse.Namespace) -> str:
    """The section of the report."""
    cases = measuring.selected(list(CASES), arguments.cases)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "model"
        make_checkpoint(directory, arguments.mib)
        found = measuring.interleave(
            cases, arguments.rounds,
            lambda name: run_child("benchmarks.warm_load", ["--case", name, "--folder", str(directory)]), "warm",
        )  # fmt: skip
    rows = [
        [name, f"{found.spread(name, lambda one: one['first'] * 1000):.1f}",
         f"{found.spread(name, lambda one: one['seconds'] * 1000):.1f}"]
        for name in found.results
    ]  # fmt: skip
    header = ["load", "ms, first of a process", "ms, median of 5 more"]
    shown = measuring.table(header, [*rows, *measuring.failure_rows(found.failures, len(header))])
    return f"A bfloat16 checkpoint of {arguments.mib} MiB in the page cache:\n\n{shown}"


def options() -> argparse.ArgumentParser:
    """Command line; its defaults are what ``python -m benchmarks`` runs."""
    parser = measuring.parser(__doc__, rounds=5)
    parser.add_argument("--mib", type=int, default=1024, help="size of the checkpoint (default %(default)s)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    arguments = options().parse_args()
    if arguments.case:
        run_case(arguments.case, arguments.folder)
        return
    print(measuring.environment() + "\n")
    print(run(arguments))


if __name__ == "__main__":
    main()
