"""``ray-model batch`` on the shared Ray: real actors, real files, local and in the S3 emulator."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ray_model_serving.cli.app import app

IMPORTABLE = Path(__file__).parent / "importable"


@pytest.fixture
def batch(running_serve, make_args, make_times_model, monkeypatch, tmp_path) -> Callable[..., Any]:
    monkeypatch.syspath_prepend(str(IMPORTABLE))
    model = make_times_model()
    args = {**make_args(cache_root=str(tmp_path / "cache")), "models": [model.settings("/times", num_cpus=0.1)]}
    (tmp_path / "settings.json").write_text(json.dumps(args))

    def run(*options: str) -> Any:
        given = ["batch", "--settings", str(tmp_path / "settings.json"), "--column", "x", *options]
        return CliRunner().invoke(app, given)

    run.model = model  # pyright: ignore[reportFunctionMemberAccess]
    return run


def parquet(path: Path, values: list[Any], **columns: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": values, **columns}), path, row_group_size=7)


def test_rows_keep_order_and_columns_and_a_second_run_does_only_what_changed(batch, tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    parquet(source / "a.parquet", [float(n) for n in range(500)], name=[f"row {n}" for n in range(500)])
    (source / "deep").mkdir()
    (source / "deep" / "b.jsonl").write_text('{"x": 1, "k": [1]}\n{"x": 2.5, "k": null}\n')
    folders = ("--input", f"file://{source}/", "--output", f"file://{target}/", "--json")
    first = batch(*folders)
    assert first.exit_code == 0, first.output
    document = json.loads(first.stdout)
    assert (document["totals"]["files"], document["totals"]["rows"]) == (2, 502)
    assert batch.model.builds() == 1, "the model is loaded once, and not for each file"
    assert document["loads"][0]["seconds"]["warm_up"] >= 0
    table = pq.read_table(target / "a.parquet")
    assert table.column_names == ["x", "name", "output"]
    assert table["name"].to_pylist() == [f"row {n}" for n in range(500)]
    assert table["output"].to_pylist() == [2.0 * n for n in range(500)]
    lines = [json.loads(line) for line in (target / "deep" / "b.jsonl").read_text().splitlines()]
    assert lines == [{"x": 1, "k": [1], "output": 2.0}, {"x": 2.5, "k": None, "output": 5.0}]

    (source / "deep" / "b.jsonl").write_text('{"x": 7}\n')
    before = (target / "a.parquet").stat().st_mtime_ns
    second = json.loads(batch(*folders).stdout)
    assert (second["totals"]["files"], second["totals"]["skipped"]) == (1, 1)
    assert (target / "a.parquet").stat().st_mtime_ns == before
    assert json.loads((target / "deep" / "b.jsonl").read_text())["output"] == 14.0

    other = batch(*folders, "--output-column", "twice")
    assert other.exit_code == 2
    assert json.loads(other.stdout)["error"]["kind"] == "other_batch"
    assert batch(*folders, "--output-column", "twice", "--fresh").exit_code == 0
    assert pq.read_schema(target / "a.parquet").names == ["x", "name", "twice"]


def test_bad_rows_fail_their_file_are_left_out_or_are_kept_with_null(batch, bucket):
    uri = bucket.put({"bad.jsonl": b'{"x": 1}\nnot json\n{"y": 3}\n{"x": 4}\n', "good.jsonl": b'{"x": 5}\n'}, "in/")
    options = ("--endpoint-url", bucket.s3.endpoint_url, "--json", "--input", uri)
    s3 = bucket.s3.client()

    def written(key: str) -> list[Any]:
        body = s3.get_object(Bucket=bucket.name, Key=key)["Body"].read().decode()
        return [json.loads(line).get("output") for line in body.splitlines()]

    failed = batch(*options, "--output", f"s3://{bucket.name}/failed")
    assert failed.exit_code == 1
    document = json.loads(failed.stdout)
    assert "bad.jsonl, row 1: is not JSON" in document["files"][0]["error"]["message"]
    keys = [found["Key"] for found in s3.list_objects_v2(Bucket=bucket.name, Prefix="failed/")["Contents"]]
    assert "failed/bad.jsonl" not in keys, "a file with a bad row is not written in part"
    assert written("failed/good.jsonl") == [10.0], "one file's failure is not the others'"

    kept = batch(*options, "--output", f"s3://{bucket.name}/keep", "--on-bad-row", "keep")
    assert kept.exit_code == 0, kept.output
    assert written("keep/bad.jsonl") == [2.0, None, None, 8.0]
    assert json.loads(kept.stdout)["totals"]["bad_rows"] == 2


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGKILL, -signal.SIGKILL),
        pytest.param(
            signal.SIGINT, 130, marks=pytest.mark.slow
        ),  # the way of the first, with a driver that can tidy up
    ],
)
def test_a_run_that_is_ended_in_the_middle_and_run_again_has_each_row_once(
    batch, running_serve, tmp_path, number, code
):
    import ray

    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a.jsonl").write_text('{"x": 1}\n')
    rows = [{"x": float(n)} for n in range(100_000)]
    for name in ("b.jsonl", "c.jsonl"):
        (source / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    folders = ("--input", f"file://{source}", "--output", f"file://{target}")
    command = [
        sys.executable,
        "-c",
        "from ray_model_serving.cli import main; main()",
        "batch",
        "--column",
        "x",
        *folders,
    ]
    command += ["--settings", str(tmp_path / "settings.json"), "--address", ray.get_runtime_context().gcs_address]
    environment = {**os.environ, "PYTHONPATH": str(IMPORTABLE)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stderr is not None
        said = _first_progress(run.stderr)
        run.send_signal(number)
        rest = run.stderr.read()
    assert run.returncode == code, f"{said} {rest}"
    left = {path.name for path in target.iterdir() if path.suffix == ".jsonl"}
    assert "a.jsonl" in left
    assert left != {"a.jsonl", "b.jsonl", "c.jsonl"}, "it was to be ended in the middle"

    again = batch(*folders, "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["totals"]["skipped"] >= 1
    for name in ("b.jsonl", "c.jsonl"):
        lines = [json.loads(line) for line in (target / name).read_text().splitlines()]
        assert lines == [{**row, "output": 2 * row["x"]} for row in rows]
    assert not list((target / "_batch").glob("staging/*")), "what was half written is swept"


def _first_progress(lines: IO[str]) -> str:
    seen = ""
    for line in lines:
        seen += line
        if "of 3: " in line:
            return seen
    raise AssertionError(f"no file was done: {seen}")
