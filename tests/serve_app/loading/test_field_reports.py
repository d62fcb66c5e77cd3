"""Loads that cost users their pods: what this loader does in the same place."""

import ctypes
import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from emulators.models import checkpoint_bytes, write_files
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.host_memory import resident
from ray_model_serving.loading import LoadedModel, load
from ray_model_serving.loading.errors import InsufficientMemoryError
from ray_model_serving.loading.plain import build_plain
from ray_model_serving.store import ModelStore

MIB = 1024**2
Load = Callable[..., LoadedModel]


@pytest.fixture
def load_shards(tmp_path: Path) -> Load:
    """Load a model of 8 shards, of 16 MiB each in float32."""
    side = 2048
    values = np.random.default_rng(11).standard_normal((side, side), dtype=np.float32)
    directory = write_files(
        tmp_path / "model",
        {f"{n}.safetensors": checkpoint_bytes({f"{n}.weight": values + n}) for n in range(8)},
    )

    def run(dtype: Dtype = Dtype.AUTO, host_peak_bytes: int | None = None) -> LoadedModel:
        with ModelStore(tmp_path / "cache").ensure(f"file://{directory}") as snapshot:
            build = build_plain(snapshot)
            return load(snapshot, build, dtype=dtype, device=Device.CPU, host_peak_bytes=host_peak_bytes)

    return run


def give_back_freed_memory() -> None:
    """glibc keeps what earlier tests freed, and a load that takes it again would not be seen."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(autouse=True)
def clean_start() -> None:
    give_back_freed_memory()


def test_the_peak_of_a_sharded_load_is_below_the_model_and_is_what_was_measured(load_shards: Load):
    # UR-089
    before = resident().anon_bytes
    for dtype, most in ((Dtype.AUTO, 0.15), (Dtype.BFLOAT16, 1.05)):
        loaded = load_shards(dtype)
        grown = resident().anon_bytes - before
        assert loaded.report.peak_anon_bytes <= most * loaded.report.model_bytes + 4 * MIB
        assert loaded.report.peak_anon_bytes >= 0.9 * grown - 4 * MIB, "what the process keeps is part of the peak"
        del loaded


def test_on_a_network_file_system_weights_are_read_in_large_pieces_and_not_mapped(
    load_shards: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    # UR-088
    here = load_shards().module.state_dict()
    monkeypatch.setattr("ray_model_serving.loading.weights.network_type", Mock(return_value="nfs4"))
    with pytest.raises(InsufficientMemoryError, match=f"needs {128 * MIB} bytes"):
        load_shards(host_peak_bytes=32 * MIB)
    give_back_freed_memory()
    loaded = load_shards()
    assert "on nfs4: weights are read, not mapped" in caplog.text
    there = loaded.module.state_dict()
    assert all(torch.equal(there[name], value) for name, value in here.items())
    assert loaded.report.peak_anon_bytes >= 120 * MIB, "the memory is the process's own"
    give_back_freed_memory()
    converted = load_shards(Dtype.BFLOAT16)
    assert converted.report.peak_anon_bytes <= (64 + 16 + 8) * MIB, "one tensor is there in both types, not all"


_THREE_MODELS = """
import gc, sys
from pathlib import Path
import torch
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.loading import load, loader
from ray_model_serving.loading.errors import InsufficientMemoryError
from ray_model_serving.host_memory import MemoryLimit
from ray_model_serving.loading.plain import build_plain
from ray_model_serving.host_memory import resident
from ray_model_serving.store import ModelStore
torch.ones(9).half()
before, budget = resident().anon_bytes, 160 * 1024**2
def used():
    return resident().anon_bytes - before
loader.tightest_limit = lambda: MemoryLimit(path=Path("memory.max"), limit_bytes=budget, used_bytes=used())
def one():
    snapshot = ModelStore(Path("unused")).ensure(sys.argv[1])
    return load(snapshot, build_plain(snapshot), dtype=Dtype.FLOAT16, device=Device.CPU)
held = [one(), one()]
try:
    one()
except InsufficientMemoryError as error:
    print("refused", error.message)
peaks = [used()]
del held[0]
gc.collect()
held.append(one())
print("loaded", max(*peaks, used()) <= 1.1 * budget)
"""


def test_a_model_that_has_no_room_beside_the_loaded_ones_is_refused(load_shards: Load, tmp_path: Path):
    # UR-091
    command = [sys.executable, "-c", _THREE_MODELS, f"file://{tmp_path / 'model'}"]
    # Takes 6 s; a machine that is busy with other things has needed ten times as long to import torch.
    run = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert run.returncode == 0, run.stderr
    refused, loaded = run.stdout.splitlines()
    assert refused.startswith("refused loading as float16 on cpu needs 67108864 bytes"), run.stdout + run.stderr
    assert loaded == "loaded True", "what goes makes room for the next, and the budget was kept throughout"
