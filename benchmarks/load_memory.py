"""Peak anonymous memory of a load, over the bytes of the model that results, and the seconds it takes.

Every case runs in a process of its own, on a file that the page cache holds; cases are interleaved.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MIB = 1024**2
LAYERS = 16


def make_model(folder: Path, mib: int) -> None:
    """The same float32 weights as safetensors and as a pickle."""
    import torch
    from safetensors.torch import save_file

    width = int((mib * MIB / 4 / LAYERS) ** 0.5)
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


CASES: dict[str, Callable[[Path, int], "torch.nn.Module"]] = {
    "ours, float32": lambda folder, width: ours(folder, width, "auto"),
    "safetensors load_file + copy, float32": lambda folder, width: load_file_and_copy(folder, width, False),
    "torch.load + load_state_dict, float32": lambda folder, width: common_flow(folder, width, False),
    "ours, to float16": lambda folder, width: ours(folder, width, "float16"),
    "safetensors load_file + copy, to float16": lambda folder, width: load_file_and_copy(folder, width, True),
    "torch.load + load_state_dict, to float16": lambda folder, width: common_flow(folder, width, True),
}


def run_case(name: str, folder: Path, mib: int) -> None:
    """In the child: load once and print what it took."""
    import time

    import torch

    from ray_model_serving.loading.sampler import PeakSampler

    width = int((mib * MIB / 4 / LAYERS) ** 0.5)
    torch.nn.Linear(2, 2)(torch.ones(2))  # whatever torch sets up once is not the load's
    with PeakSampler() as sampler:
        started = time.perf_counter()
        module = CASES[name](folder, width)
        seconds = time.perf_counter() - started
        inputs = torch.ones(1, width, dtype=next(module.parameters()).dtype)
        with torch.inference_mode():
            module(inputs)  # touches every weight
    model_bytes = sum(parameter.nbytes for parameter in module.parameters())
    print(json.dumps({"seconds": seconds, "peak": sampler.peak_anon_bytes, "model": model_bytes}))


def measure(name: str, folder: Path, mib: int) -> dict[str, float]:
    """One round of one case, in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--case", name, "--folder", str(folder), "--mib", str(mib)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def spread(values: list[float], form: str) -> str:
    """Median and range."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512, help="size of the float32 checkpoint in MiB (default 512)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, interleaved (default 5)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        run_case(arguments.case, arguments.folder, arguments.mib)
        return
    import torch

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_model(folder, arguments.mib)
        results: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
        for round_number in range(arguments.rounds):
            for name in CASES:
                print(f"round {round_number + 1}/{arguments.rounds}: {name}", file=sys.stderr)
                results[name].append(measure(name, folder, arguments.mib))
    print(
        f"{arguments.mib} MiB float32 checkpoint in the page cache, {arguments.rounds} interleaved rounds, "
        "median (range)."
    )
    print(f"{os.cpu_count()} CPUs, {platform.system()} {platform.release()}, Python {platform.python_version()}, "
          f"torch {torch.__version__}.\n")  # fmt: skip
    print("| load | peak anonymous / model | seconds |\n| --- | --- | --- |")
    for name, rounds in results.items():
        peaks = spread([one["peak"] / one["model"] for one in rounds], ".2f")
        print(f"| {name} | {peaks} | {spread([one['seconds'] for one in rounds], '.2f')} |")


if __name__ == "__main__":
    main()
