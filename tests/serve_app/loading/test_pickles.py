"""Pickled checkpoints are mapped, never run: what is more than weights is refused with the file's name."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from emulators.models import write_files
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.loading import LoadedModel, load, pickles
from ray_model_serving.loading.errors import InsufficientMemoryError, UnsafeCheckpointError, UnsupportedCheckpointError
from ray_model_serving.loading.plain import build_plain
from ray_model_serving.loading.weights import open_weights
from ray_model_serving.store import ModelStore

MIB = 1024**2
WEIGHTS = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2)}


class RunsOnRead:
    """What an attacker puts into a pickle."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.mark),))


def save(directory: Path, files: Mapping[str, Any], **options: Any) -> Path:
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        torch.save(content, directory / name, **options)
    return directory


def load_from(directory: Path, dtype: Dtype = Dtype.AUTO) -> LoadedModel:
    with ModelStore(directory / "cache").ensure(f"file://{directory}", exclude=()) as snapshot:
        return load(snapshot, lambda _: nn.Linear(3, 2), dtype=dtype, device=Device.CPU)


def test_a_pickled_state_dict_loads_as_safetensors_do(tmp_path: Path):
    for dtype, kind in ((Dtype.AUTO, torch.float32), (Dtype.BFLOAT16, torch.bfloat16)):
        loaded = load_from(save(tmp_path / "model", {"pytorch_model.bin": WEIGHTS}), dtype)
        assert loaded.module(torch.tensor([[1.0, 10.0, 100.0]], dtype=kind)).tolist() == [[211.0, 544.0]]
        assert not any(parameter.requires_grad for parameter in loaded.module.parameters())


def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path: Path):
    directory = save(tmp_path / "model", {"pytorch_model.bin": {**WEIGHTS, "x": RunsOnRead(tmp_path / "mark")}})
    with pytest.raises(UnsafeCheckpointError) as raised:
        load_from(directory)
    assert "pytorch_model.bin" in raised.value.message
    assert "posix.mkdir" in raised.value.message
    assert raised.value.permanent
    assert not (tmp_path / "mark").exists()


def test_a_whole_pickled_module_is_refused(tmp_path: Path):
    with pytest.raises(UnsafeCheckpointError, match=r"model\.pt.*torch\.nn\.modules\.linear\.Linear"):
        load_from(save(tmp_path / "model", {"model.pt": nn.Linear(3, 2)}))


def test_a_legacy_pickle_is_refused_before_torch_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    directory = save(tmp_path / "model", {"old.bin": WEIGHTS}, _use_new_zipfile_serialization=False)
    monkeypatch.setattr(torch, "load", None)
    with pytest.raises(UnsupportedCheckpointError, match=r"old\.bin: is not a zip archive"):
        load_from(directory)


def test_what_is_no_checkpoint_is_refused_with_its_name(tmp_path: Path):
    save(tmp_path / "model", {"whole.pt": WEIGHTS})
    content = (tmp_path / "model" / "whole.pt").read_bytes()
    for name, part in (("cut.pt", content[:300]), ("zip.bin", b"PK\x03\x04" + b"\0" * 100)):
        directory = write_files(tmp_path / name.partition(".")[0], {name: part})
        with pytest.raises(UnsupportedCheckpointError, match=name):
            load_from(directory)


@pytest.mark.filterwarnings("ignore")  # torch.jit is on its way out, its files are not
def test_torchscript_is_refused(tmp_path: Path):
    directory = write_files(tmp_path / "model", {})
    directory.mkdir()
    torch.jit.script(nn.Linear(3, 2)).save(directory / "script.pt")
    with pytest.raises(UnsupportedCheckpointError, match=r"script\.pt"):
        load_from(directory)


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_the_weights_of_a_training_checkpoint_are_found(key: str, tmp_path: Path):
    checkpoint = {"epoch": 3, key: WEIGHTS, "optimizer": {"state": {0: torch.zeros(9)}}}
    assert load_from(save(tmp_path / "model", {"last.ckpt": checkpoint})).report.model_bytes == 32


@pytest.mark.parametrize("content", [{"ema": WEIGHTS, "epoch": 3}, {"model": WEIGHTS, "state_dict": WEIGHTS}, [1], {}])
def test_weights_that_can_not_be_told_from_the_rest_are_refused(content: Any, tmp_path: Path):
    with pytest.raises(UnsupportedCheckpointError, match=r"last\.pt: no or more than one mapping") as raised:
        load_from(save(tmp_path / "model", {"last.pt": content}))
    assert "--state-key" in raised.value.hint


def test_the_key_that_is_named_is_the_one_that_counts(tmp_path: Path):
    directory = save(tmp_path / "model", {"last.pt": {"model": {"a": torch.ones(1)}, "ema": {"b": torch.ones(2)}}})
    manifest = ModelStore(tmp_path).resolve(f"file://{directory}", exclude=())
    assert list(open_weights(directory, manifest.files, "ema").checkpoint.tensors) == ["b"]


def test_an_index_names_the_shards_that_count(tmp_path: Path):
    shards = {
        "1.bin": {"weight": WEIGHTS["weight"]},
        "2.bin": {"bias": WEIGHTS["bias"]},
        "training_args.bin": nn.ReLU(),
    }
    directory = save(tmp_path / "model", shards)
    index = {"weight_map": {"weight": "1.bin", "bias": "2.bin"}}
    write_files(directory, {"pytorch_model.bin.index.json": json.dumps(index).encode()})
    assert load_from(directory).report.model_bytes == 32
    (directory / "2.bin").unlink()
    with pytest.raises(UnsupportedCheckpointError, match=r"not among the files: 2\.bin"):
        load_from(directory)


def test_a_tensor_in_two_files_and_a_sparse_one_are_one_error(tmp_path: Path):
    directory = save(tmp_path / "model", {"1.bin": WEIGHTS, "2.bin": {"bias": torch.ones(2)}})
    torch.save({"rare": torch.ones(3).to_sparse()}, directory / "3.bin")
    with pytest.raises(UnsupportedCheckpointError) as raised:
        load_from(directory)
    assert "2.bin: tensor 'bias' is in 1.bin too" in raised.value.message
    assert "3.bin: 'rare'" in raised.value.message


def test_the_optimizer_of_a_checkpoint_takes_no_memory(tmp_path: Path):
    # UR-089
    weights = {f"{n}": torch.rand(4 * MIB) for n in range(4)}
    moments = {f"{n}": torch.rand(4 * MIB) for n in range(8)}
    directory = save(tmp_path / "model", {"last.pt": {"model": weights, "optimizer": moments}})
    with ModelStore(tmp_path / "cache").ensure(f"file://{directory}", exclude=()) as snapshot:
        for dtype, most in ((Dtype.AUTO, 0.15), (Dtype.FLOAT16, 1.05)):
            report = load(snapshot, build_plain(snapshot), dtype=dtype, device=Device.CPU).report
            assert report.model_bytes == 64 * MIB // (1 if dtype is Dtype.AUTO else 2)
            assert report.peak_anon_bytes <= most * report.model_bytes + 4 * MIB
    assert np.isfinite(weights["0"].sum().item())


def test_on_a_network_file_system_pickles_are_read_through_once_and_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    # UR-088
    directory = save(tmp_path / "model", {"1.bin": {"weight": WEIGHTS["weight"]}, "2.bin": {"bias": WEIGHTS["bias"]}})
    monkeypatch.setattr("ray_model_serving.loading.weights.network_type", Mock(return_value="nfs4"))
    read = Mock(wraps=pickles.read_through)
    monkeypatch.setattr(pickles, "read_through", read)
    weights = open_weights(directory, ModelStore(tmp_path).resolve(f"file://{directory}", exclude=()).files)
    assert "on nfs4: weights are read, not mapped" in caplog.text
    assert not weights.mapped
    assert not read.called, "the checks of memory come first"
    found, again = (dict(weights.tensors(["weight", "bias"], Device.CPU)) for _ in range(2))
    assert all(torch.equal(again[name], WEIGHTS[name]) for name in WEIGHTS)
    assert [call.args[0].name for call in read.call_args_list] == ["1.bin", "2.bin"], "large reads in order, once"
    for path in directory.iterdir():
        os.truncate(path, 0)
    assert all(torch.equal(found[name], WEIGHTS[name]) for name in WEIGHTS), "memory of its own, not the file"


def test_pickles_off_a_network_file_system_must_fit_the_declared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # UR-088
    directory = save(tmp_path / "model", {"model.bin": WEIGHTS})
    monkeypatch.setattr("ray_model_serving.loading.weights.network_type", Mock(return_value="nfs4"))
    with ModelStore(tmp_path / "cache").ensure(f"file://{directory}", exclude=()) as snapshot:
        build = build_plain(snapshot)
        with pytest.raises(InsufficientMemoryError, match="needs 32 bytes"):
            load(snapshot, build, dtype=Dtype.AUTO, device=Device.CPU, host_peak_bytes=31)
        assert load(snapshot, build, dtype=Dtype.AUTO, device=Device.CPU, host_peak_bytes=32).report.model_bytes == 32
