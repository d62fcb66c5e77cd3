"""Files that are not what their names say are found before they are published or used."""

import json
from pathlib import Path

import numpy as np
import pytest

from emulators import RecordingProxy
from emulators.models import Bucket, checkpoint_bytes, linear_model, write_files
from ray_model_serving.store import ModelStore
from ray_model_serving.store.errors import InvalidModelFileError

WEIGHTS = linear_model()["model.safetensors"]
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 90868376\n"
INDEX = json.dumps({"weight_map": {"weight": "a.safetensors", "bias": "b.safetensors"}}).encode()
SHARD = checkpoint_bytes({"weight": np.zeros(3, dtype=np.float32)})

BAD = {
    "html page": ({"model.safetensors": b"\n<!DOCTYPE html><html><body>Sign in</body></html>"}, "HTML or XML page"),
    "s3 error": (
        {"model.safetensors": b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>"},
        "HTML or XML page",
    ),
    "lfs pointer": ({"model.safetensors": LFS_POINTER}, "Git LFS pointer"),
    "lfs tokenizer": ({"model.safetensors": WEIGHTS, "tokenizer.json": LFS_POINTER}, "tokenizer.json: is a Git LFS"),
    "cut by a byte": ({"model.safetensors": WEIGHTS[:-1]}, "it is cut"),
    "cut in the header": ({"model.safetensors": WEIGHTS[:20]}, "it is cut or not safetensors"),
    "longer": ({"model.safetensors": WEIGHTS + b"x"}, "bytes after the last tensor"),
    "empty": ({"model.safetensors": b""}, "too few for a safetensors header"),
    "random": ({"model.safetensors": bytes(range(256))}, "cut or not safetensors"),
    "header is no mapping": ({"model.safetensors": (2).to_bytes(8, "little") + b"[]"}, "not safetensors'"),
    "shard is missing": ({"model.safetensors.index.json": INDEX, "a.safetensors": SHARD}, "names shard b.safetensors"),
    "index is no index": ({"model.safetensors.index.json": b"{}", "a.safetensors": SHARD}, "not a readable index"),
}


@pytest.mark.parametrize(("files", "problem"), BAD.values(), ids=BAD.keys())
def test_a_file_that_is_not_what_its_name_says_is_refused_where_it_lies(files, problem: str, tmp_path: Path):
    directory = write_files(tmp_path / "model", files)
    with pytest.raises(InvalidModelFileError, match=problem):
        ModelStore(tmp_path / "cache").ensure(f"file://{directory}")


@pytest.mark.parametrize("name", ["html page", "lfs pointer", "cut by a byte"])
def test_a_bad_object_is_refused_before_it_is_published(
    name: str, proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    files, problem = BAD[name]
    with pytest.raises(InvalidModelFileError, match=problem) as raised:
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(bucket.put(files))
    assert raised.value.permanent, "the object is what it is; a retry downloads the same bytes"
    assert not list((tmp_path / "snapshots").iterdir())
    assert not list((tmp_path / "staging").iterdir())


def test_all_bad_files_are_reported_at_once(tmp_path: Path):
    files = {"a.safetensors": WEIGHTS[:-1], "b.safetensors": LFS_POINTER, "c.json": b"<html>", "good.json": b"{}"}
    directory = write_files(tmp_path / "model", files)
    with pytest.raises(InvalidModelFileError) as raised:
        ModelStore(tmp_path / "cache").ensure(f"file://{directory}")
    assert "3 files" in raised.value.message
    assert all(name in raised.value.message for name in ("a.safetensors", "b.safetensors", "c.json"))


def test_pages_that_are_meant_to_be_pages_pass(tmp_path: Path):
    files = {**linear_model(), "docs/index.html": b"<html></html>", "icon.svg": b"<?xml version='1.0'?><svg/>"}
    directory = write_files(tmp_path / "model", files)
    ModelStore(tmp_path / "cache").ensure(f"file://{directory}").close()
