"""``ray-model batch`` before a job starts: every kind of bad input is told at once, and nothing is written."""

import importlib.util
import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from ray_model_serving.cli.app import app


@pytest.fixture
def batch(tmp_path, minilm) -> Callable[..., Any]:
    model = {
        "name": "embed",
        "route": "/embed",
        "model_class": "ray_model_serving.models.text_embedding:TextEmbedding",
        "uri": minilm,
        "device": "cpu",
        "weights_bytes": 90_868_376,
        "host_peak_bytes": 67_108_864,
    }
    args = {
        "models": [model],
        "cache_root": str(tmp_path / "cache"),
        "cache_budget_bytes": 2**30,
        "load_deadline_s": 60,
    }
    (tmp_path / "settings.json").write_text(json.dumps(args))
    (tmp_path / "bytes.yaml").write_bytes(b"\x9d\x9d")
    config = {"applications": [{"name": "a", "import_path": "ray_model_serving.app:build", "args": args}]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "broken.json").write_text(json.dumps({**args, "models": [{**model, "uri": "http://x"}], "cache": 1}))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "a", "k": 1}\n')

    def run(settings: str = "settings.json", **changes: str) -> Any:
        options = {"input": f"file://{tmp_path}/in", "output": f"file://{tmp_path}/out", **changes}
        given = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
        return CliRunner().invoke(app, ["batch", "--settings", str(tmp_path / settings), *given])

    return run


@pytest.mark.parametrize("settings", ["settings.json", "config.json"])
def test_all_that_is_wrong_with_the_options_is_told_at_once(settings, batch, tmp_path):
    result = batch(settings, column="x", output_column="k", batch_size="99", output=f"file://{tmp_path}/in/out")
    assert result.exit_code == 2
    for said in ("--column: got 'x'", "--output-column: got 'k'", "--batch-size: got 99", "--output: "):
        assert said in result.stderr
    assert not (tmp_path / "in" / "out").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "other"}, "the settings have: embed"),
        ({"input": "file:///no/such/folder"}, "holds no .parquet"),
        ({"input": "ftp://x/y"}, "must be s3://bucket/prefix or file:///path"),
        ({"output": "file:///tmp/x.parquet"}, "must be a folder"),
        ({"settings": "missing.json"}, "missing.json: No such file or directory"),
        ({"settings": "bytes.yaml"}, "bytes.yaml: 'utf-8' codec can't decode"),
        ({"settings": "in/a.jsonl"}, "unknown key"),
        ({"on_bad_row": "ignore"}, "--on-bad-row"),
        ({"concurrency": "0"}, "--concurrency"),
    ],
)
def test_bad_input_is_2_and_says_which(changes, said, batch):
    result = batch(**changes)
    assert result.exit_code == 2, result.output
    assert said in result.stderr


def test_every_problem_of_the_settings_is_told(batch):
    result = batch("broken.json")
    assert result.exit_code == 2
    assert "models[0].uri: " in result.stderr
    assert "cache: unknown key" in result.stderr


def test_without_the_extra_it_says_what_to_install(batch, monkeypatch):
    find = importlib.util.find_spec

    def without_pyarrow(name: str) -> Any:
        return None if name == "pyarrow" else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", without_pyarrow)
    result = batch()
    assert result.exit_code == 1
    assert "not installed: pyarrow (pip install 'ray-model-serving[serve,batch]')" in result.stderr
