"""A model's tensors over all its files, and what a load of them needs."""

import json
from pathlib import Path

import numpy as np
import pytest

from emulators.models import checkpoint_bytes, linear_model, write_files
from ray_model_serving.contract.cache_format import FileEntry
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.store import ModelStore
from ray_model_serving.store.checkpoint import Checkpoint, read_checkpoint, read_directory
from ray_model_serving.store.errors import InvalidModelFileError, NoWeightsError
from ray_model_serving.store.file_checks import check_files

A = checkpoint_bytes({"a": np.zeros((4, 8), dtype=np.float32)})
B = checkpoint_bytes({"b": np.zeros(10, dtype=np.float16), "ids": np.zeros(3, dtype=np.int64)})


def index(**weight_map: str) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": weight_map}).encode()


def read(tmp_path: Path, files: dict[str, bytes]) -> Checkpoint:
    directory = write_files(tmp_path / "model", files)
    manifest = ModelStore(tmp_path).resolve(f"file://{directory}")
    return read_directory(directory, manifest.files)


def test_shards_are_read_through_their_index_and_other_files_are_not(tmp_path: Path):
    files = {
        "model.safetensors.index.json": index(a="1.safetensors", b="2.safetensors", ids="2.safetensors"),
        "1.safetensors": A,
        "2.safetensors": B,
        "consolidated.safetensors": checkpoint_bytes({"a": np.zeros(1, dtype=np.float32)}),
    }
    checkpoint = read(tmp_path, files)
    assert checkpoint.files == {"a": "1.safetensors", "b": "2.safetensors", "ids": "2.safetensors"}
    assert checkpoint.bytes_by_dtype() == {"F32": 128, "F16": 20, "I64": 24}


def test_without_an_index_every_safetensors_file_counts(tmp_path: Path):
    assert set(read(tmp_path, {"1.safetensors": A, "sub/2.safetensors": B}).tensors) == {"a", "b", "ids"}


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"1.safetensors": A, "2.safetensors": A}, "'a' is in 1.safetensors too"),
        (
            {"model.safetensors.index.json": index(a="1.safetensors", z="1.safetensors"), "1.safetensors": A},
            "lacks",
        ),
        ({"model.safetensors.index.json": index(a="9.safetensors"), "1.safetensors": A}, "not among the files"),
        ({"a.safetensors.index.json": index(), "b.safetensors.index.json": index(), "1.safetensors": A}, "2 shard ind"),
    ],
)
def test_weights_that_are_not_one_model_are_refused(files: dict[str, bytes], problem: str, tmp_path: Path):
    with pytest.raises(InvalidModelFileError, match=problem):
        read(tmp_path, files)


def test_files_without_safetensors_have_no_weights(tmp_path: Path):
    with pytest.raises(NoWeightsError, match="pickled weights are not loaded"):
        read(tmp_path, {"config.json": b"{}"})


@pytest.mark.parametrize(
    ("dtype", "device", "weights", "host_peak"),
    [
        (Dtype.AUTO, Device.CPU, 172, 0),
        (Dtype.FLOAT32, Device.CPU, 128 + 40 + 24, 40),
        (Dtype.FLOAT16, Device.CPU, 64 + 20 + 24, 64),
        (Dtype.BFLOAT16, Device.CPU, 64 + 20 + 24, 84),
        (Dtype.FLOAT16, Device.CUDA, 64 + 20 + 24, 128),
    ],
)
def test_what_a_load_needs_follows_from_the_headers(
    dtype: Dtype, device: Device, weights: int, host_peak: int, tmp_path: Path
):
    checkpoint = read(tmp_path, {"1.safetensors": A, "2.safetensors": B})
    assert checkpoint.loaded_bytes(dtype) == weights, "integers keep their type"
    assert checkpoint.host_peak_bytes(dtype, device) == host_peak, "what is mapped as it is needs nothing"


def test_headers_are_read_with_few_bytes_and_a_long_one_with_one_more_request(tmp_path: Path):
    many = checkpoint_bytes({f"layer.{number:05}.weight": np.zeros(1000, dtype=np.float32) for number in range(4000)})
    directory = write_files(tmp_path / "model", {"model.safetensors": many})
    manifest = ModelStore(tmp_path).resolve(f"file://{directory}")
    lengths: list[int] = []

    def read_start(path: str, length: int) -> bytes:
        lengths.append(length)
        return many[:length]

    assert len(read_checkpoint(manifest.files, read_start).tensors) == 4000
    assert len(lengths) == 2
    assert sum(lengths) < 0.1 * len(many)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{" * 100_000,
        b"[" * 100_000,
        b'{"weight_map": {"a": 1, "b": "x"}}',
        b'{"weight_map": {"a": ["x"]}}',
        b'{"weight_map": []}',
    ],
)
def test_an_index_that_is_none_is_refused_by_both_who_read_it(text: bytes, tmp_path: Path):
    name = "model.safetensors.index.json"
    files = {**linear_model(), name: text}
    directory = write_files(tmp_path, files)
    with pytest.raises(InvalidModelFileError, match="is not a readable index"):
        check_files(directory, files, "s3://b/m/")

    def read_start(path: str, length: int) -> bytes:
        assert length > 0, "no store serves a range of no bytes"
        return files[path][:length]

    entries = [FileEntry(path=path, key=path, size_bytes=len(data), etag="") for path, data in files.items()]
    with pytest.raises(InvalidModelFileError, match="is not a readable index"):
        read_checkpoint(entries, read_start)
