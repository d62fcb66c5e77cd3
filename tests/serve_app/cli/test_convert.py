"""``ray-model convert``: the result loads, unsafe pickles are refused, and the target is whole or untouched."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner, Result

from emulators import RecordingProxy
from emulators.models import Bucket, checkpoint_bytes, linear_model, read_files, write_files
from ray_model_serving.cli.app import app
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.loading import load
from ray_model_serving.loading.rewrite import Rewrite
from ray_model_serving.store import ModelStore

MIB = 1024**2


def convert(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


def document(result: Result) -> Mapping[str, Any]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def save(directory: Path, files: Mapping[str, Any]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        torch.save(content, directory / name)
    return directory


WEIGHTS = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2)}


def test_a_pickle_becomes_safetensors_that_load_as_they_are(tmp_path: Path):
    source = save(tmp_path / "old", {"pytorch_model.bin": WEIGHTS, "training_args.bin": nn.ReLU()})
    write_files(source, {"config.json": b"{}", "tokenizer/vocab.txt": b"a\n"})
    report = document(convert(source, tmp_path / "new", "--dtype", "bfloat16", "--json"))
    assert sorted(read_files(tmp_path / "new")) == ["config.json", "model.safetensors", "tokenizer/vocab.txt"]
    assert report["bytes"] == {"source": 32, "written": 16}
    with ModelStore(tmp_path / "cache").ensure(f"file://{tmp_path / 'new'}") as snapshot:
        loaded = load(snapshot, lambda _: nn.Linear(3, 2), dtype=Dtype.BFLOAT16, device=Device.CPU)
    assert loaded.report.seconds["convert"] == 0, "the type is right already, so the file is mapped"
    assert loaded.module.get_parameter("weight").tolist() == WEIGHTS["weight"].tolist()


def test_shards_of_an_index_become_shards_of_the_wanted_size(tmp_path: Path):
    first = {f"a{n}": torch.rand(MIB) for n in range(3)}
    second = {f"b{n}": torch.rand(MIB) for n in range(2)}
    index = {"weight_map": {**dict.fromkeys(first, "1.bin"), **dict.fromkeys(second, "2.bin")}}
    source = save(tmp_path / "old", {"1.bin": first, "2.bin": second})
    write_files(source, {"pytorch_model.bin.index.json": json.dumps(index).encode()})
    report = document(convert(source, tmp_path / "new", "--max-shard-gib", 8 / 1024, "--json"))
    assert [(tmp_path / "new" / name).stat().st_size // MIB for name in report["files"]] == [8, 8, 4]
    written = {n: t for name in report["files"] for n, t in load_file(tmp_path / "new" / name).items()}
    assert all(torch.equal(written[name], tensor) for name, tensor in {**first, **second}.items())
    again = document(convert(tmp_path / "new", tmp_path / "whole", "--json"))
    assert again["files"] == ["model.safetensors"], "safetensors are a source too, their old index is left behind"
    assert sorted(read_files(tmp_path / "whole")) == ["model.safetensors"]


def test_tied_tensors_are_written_once_and_load_under_both_names(tmp_path: Path):
    shared = torch.rand(4, 3)
    source = save(tmp_path / "old", {"m.bin": {"embedding.weight": shared, "output.weight": shared, "part": shared[1]}})
    report = document(convert(source, tmp_path / "new", "--json"))
    assert report["tied"] == {"output.weight": "embedding.weight"}
    assert report["bytes"]["written"] == 4 * (12 + 3), "a slice of it is a tensor of its own"

    class Untied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(4, 3)
            self.output = nn.Linear(3, 4, bias=False)
            self.part = nn.Parameter(torch.zeros(3))

    with ModelStore(tmp_path / "cache").ensure(f"file://{tmp_path / 'new'}") as snapshot:
        for dtype in (Dtype.AUTO, Dtype.FLOAT16):
            module = load(snapshot, lambda _: Untied(), dtype=dtype, device=Device.CPU).module
            output = module.get_parameter("output.weight")
            assert torch.equal(output, module.get_parameter("embedding.weight"))
            assert torch.allclose(output.float(), shared, atol=1e-3)


def test_memory_stays_within_the_budget_whatever_the_tensor(tmp_path: Path):
    # UR-089
    large = torch.rand(4096, 12_288)  # 192 MiB, and transposed below: its memory is not in order
    source = save(tmp_path / "old", {"model.pt": {"model": {"w": large.T}, "optimizer": torch.zeros(48 * MIB)}})
    report = document(convert(source, tmp_path / "new", "--dtype", "float16", "--memory-gib", 1 / 16, "--json"))
    assert report["bytes"]["written"] == 96 * MIB
    assert report["memory"]["peak_anon_bytes"] <= 64 * MIB
    assert torch.equal(load_file(tmp_path / "new" / "model.safetensors")["w"], large.T.half())


class RunsOnRead:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.mark),))


def test_an_unsafe_pickle_is_refused_and_leaves_no_target(tmp_path: Path):
    source = save(tmp_path / "old", {"good.bin": WEIGHTS, "model.bin": {"x": RunsOnRead(tmp_path / "mark")}})
    result = convert(source, tmp_path / "new", "--json")
    assert result.exit_code == 1
    error = json.loads(result.stdout)["error"]
    assert error["kind"] == "unsafe_checkpoint"
    assert "model.bin" in error["message"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"], "neither target, nor staging, nor the mark"


@pytest.mark.parametrize("kind", ["file", "full"])
def test_nothing_is_ever_overwritten(kind: str, tmp_path: Path):
    source = save(tmp_path / "old", {"m.bin": WEIGHTS})
    target = write_files(tmp_path, {"new": b"mine"} if kind == "file" else {"new/mine": b"mine"}) / "new"
    result = convert(source, target, "--json")
    assert result.exit_code == 2
    assert "not an empty directory" in json.loads(result.stdout)["error"]["message"]
    assert (target if kind == "file" else target / "mine").read_bytes() == b"mine"


def test_an_empty_target_is_filled_and_a_failure_leaves_it_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source, target = save(tmp_path / "old", {"m.bin": WEIGHTS}), tmp_path / "new"
    target.mkdir()

    def fail_half_way(self: Rewrite, directory: Path, *_: object, **__: object) -> None:
        (directory / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Rewrite, "write", fail_half_way)
        assert convert(source, target).exit_code == 130
    assert not list(target.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]
    result = convert(source, target)
    assert result.exit_code == 0
    assert "2 tensors in 1 files" in result.stdout
    assert "convert" in result.stderr, "progress goes to stderr"
    assert "model.safetensors" in read_files(target)


def test_a_full_disk_is_said_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = save(tmp_path / "old", {"m.bin": WEIGHTS})
    monkeypatch.setattr("ray_model_serving.loading.convert.free_bytes", Mock(return_value=31))
    result = convert(source, tmp_path / "new", "--json")
    assert (result.exit_code, json.loads(result.stdout)["error"]["kind"]) == (1, "no_space")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]


def test_a_model_in_a_bucket_comes_through_the_cache(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    source = save(tmp_path / "old", {"m.bin": WEIGHTS})
    uri = bucket.put(read_files(source))
    options = ("--cache-dir", tmp_path / "cache", "--endpoint-url", proxy.endpoint_url, "--json")
    document(convert(uri, tmp_path / "new", *options))
    document(convert(uri, tmp_path / "other", "--dtype", "float16", *options))
    assert proxy.object_bytes() < 1.5 * (source / "m.bin").stat().st_size, "the second conversion reads the cache"
    assert torch.equal(load_file(tmp_path / "new" / "model.safetensors")["weight"], WEIGHTS["weight"])


def test_a_source_that_is_not_there_and_one_without_weights(tmp_path: Path):
    missing = convert(tmp_path / "nowhere", tmp_path / "new", "--json")
    assert (missing.exit_code, json.loads(missing.stdout)["error"]["kind"]) == (1, "directory_not_found")
    empty = write_files(tmp_path / "old", {"config.json": b"{}"})
    assert json.loads(convert(empty, tmp_path / "new", "--json").stdout)["error"]["kind"] == "no_weights"
    assert convert(empty, tmp_path / "new", "--memory-gib", 0.01).exit_code == 2


def test_files_that_are_no_longer_wanted_can_be_left_out(tmp_path: Path):
    files = {**linear_model(), "extra.safetensors": checkpoint_bytes({})}
    source = write_files(tmp_path / "old", files)
    document(convert(source, tmp_path / "new", "--exclude", "extra*", "--exclude", "*.txt", "--json"))
    assert sorted(read_files(tmp_path / "new")) == ["config.json", "model.safetensors"]
