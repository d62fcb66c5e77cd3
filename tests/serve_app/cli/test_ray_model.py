"""The ``ray-model`` command: documents, exit codes and what is printed where (design 4.1)."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from emulators import Answer, RecordingProxy, answer
from emulators.models import Bucket, large_model, linear_model, write_files
from emulators.proxy import Forward, Request
from ray_model_serving.cli.app import app

_WAIT_S = 60.0


def ray_model(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def document(result: Result) -> Mapping[str, Any]:
    """The one document on stdout; anything else there is an error."""
    return json.loads(result.stdout)


def is_error_document(given: Mapping[str, Any], kind: str) -> bool:
    error = given["error"]
    return error["kind"] == kind and set(error) == {"kind", "message", "permanent", "hint"}


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from ray_model_serving.cli import main; main()", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"}
    )


def test_help_lists_what_is_built_and_loads_neither_torch_nor_boto3():
    code = (
        "import sys; from typer.testing import CliRunner; from ray_model_serving.cli.app import app\n"
        "print(CliRunner().invoke(app, ['--help']).stdout)\n"
        "print('loaded:', [m for m in ('torch', 'boto3', 'ray', 'numpy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=_WAIT_S)
    assert "loaded: []" in run.stdout, run.stdout + run.stderr
    commands = ("inspect", "fetch", "load", "convert", "cache", "warmup", "batch")
    assert all(command in run.stdout for command in commands)


def test_inspect_needs_headers_and_no_weights(proxy: RecordingProxy, bucket: Bucket):
    files = large_model(20)
    uri = bucket.put(files)
    result = ray_model("inspect", uri, "--json", "--endpoint-url", proxy.endpoint_url)
    assert result.exit_code == 0, result.output
    given = document(result)
    weights_bytes = 20 * 1024**2
    assert given["bytes"] == sum(map(len, files.values()))
    assert given["weights"] == {"tensors": 1, "bytes": weights_bytes, "bytes_by_dtype": {"F32": weights_bytes}}
    assert given["memory"]["float16"]["host_peak_bytes_cpu"] == weights_bytes // 2
    assert given["memory"]["auto"]["host_peak_bytes_cpu"] == 0
    assert proxy.object_bytes() < 0.05 * weights_bytes


def test_inspect_prints_the_id_that_fetch_then_accepts_as_a_pin(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri, endpoint = bucket.put(linear_model()), ("--endpoint-url", proxy.endpoint_url)
    identity = document(ray_model("inspect", uri, "--json", *endpoint))["snapshot_id"]
    cache = ("--cache-dir", tmp_path)
    assert ray_model("fetch", uri, "--snapshot-id", identity, *cache, *endpoint).exit_code == 0
    refused = ray_model("fetch", uri, "--snapshot-id", "0" * 32, "--json", *cache, *endpoint)
    assert refused.exit_code == 1
    assert is_error_document(document(refused), "snapshot_mismatch")


@pytest.mark.parametrize("command", ["inspect", "fetch", "load"])
@pytest.mark.parametrize("uri", ["http://models/minilm", "s3://bucket", "file://relative", "s3://b/../c"])
def test_a_uri_that_is_none_is_bad_input(command: str, uri: str):
    result = ray_model(command, uri, "--json")
    assert result.exit_code == 2
    assert is_error_document(document(result), "bad_uri")


def test_without_json_an_error_is_text_on_stderr_and_stdout_stays_empty():
    result = ray_model("fetch", "http://models/minilm")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "a model URI starts with s3:// or file://" in result.stderr
    assert "Traceback" not in result.stderr


def test_inspect_of_a_model_that_can_not_be_loaded_is_2_and_of_a_store_that_is_away_is_1(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    directory = write_files(tmp_path / "model", {"model.safetensors": b"<html>"})
    cut = ray_model("inspect", f"file://{directory}", "--json")
    assert (cut.exit_code, document(cut)["error"]["kind"]) == (2, "invalid_model_file")
    monkeypatch.setattr("ray_model_serving.store.retries.ATTEMPTS", 1)
    proxy.rule = answer(503, "SlowDown")
    away = ray_model("inspect", bucket.put(linear_model()), "--json", "--endpoint-url", proxy.endpoint_url)
    assert (away.exit_code, document(away)["error"]["kind"]) == (1, "store_unavailable")


def test_fetch_reports_what_the_design_promises(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put(linear_model())
    arguments = ("fetch", uri, "--cache-dir", tmp_path, "--endpoint-url", proxy.endpoint_url, "--json")
    first, second = document(ray_model(*arguments)), document(ray_model(*arguments))
    size = sum(map(len, linear_model().values()))
    assert first["bytes"] == {"store": size, "node": 0, "image": 0}
    assert second["bytes"] == {"store": 0, "node": size, "image": 0}
    assert list(first["seconds"]) == ["resolve", "wait", "download", "verify", "commit", "total"]
    assert first["path"] == str(tmp_path / "snapshots" / first["snapshot_id"])
    assert Path(first["path"], "snapshot.json").is_file()


def test_fetch_in_words_names_bytes_and_checks(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    result = ray_model(
        "fetch", bucket.put(linear_model()), "--cache-dir", tmp_path, "--endpoint-url", proxy.endpoint_url
    )
    assert result.exit_code == 0
    assert "from the store" in result.stdout
    assert "3 files by CRC32/FULL_OBJECT" in result.stdout
    assert "download" in result.stderr, "progress is on stderr, in plain lines without a terminal"


def test_fetch_takes_a_uri_or_a_list():
    for arguments in (["fetch"], ["fetch", "s3://b/m/", "--list", "models.json"]):
        assert ray_model(*arguments).exit_code == 2


def test_a_list_fetches_every_model_it_can_and_fails_at_the_end_with_every_problem(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    good = bucket.put(linear_model(), "good/")
    models = [
        {"uri": f"s3://{bucket.name}/absent/"},
        {"uri": good, "include": ["*"], "exclude": ["*.txt"], "snapshot_id": None},
        {"uri": "s3://no-such-bucket/m/"},
    ]
    (tmp_path / "models.json").write_text(json.dumps({"models": models}))
    arguments = ("fetch", "--list", tmp_path / "models.json", "--cache-dir", tmp_path / "cache")
    result = ray_model(*arguments, "--json", "--endpoint-url", proxy.endpoint_url)
    assert result.exit_code == 1
    given = document(result)
    assert [model["uri"] for model in given["models"]] == [model["uri"] for model in models]
    assert [model.get("error", {}).get("kind") for model in given["models"]] == ["no_objects", None, "bucket_not_found"]
    assert given["error"]["kind"] == "some_failed"
    assert "absent" in given["error"]["message"]
    assert "no-such-bucket" in given["error"]["message"]
    path = Path(given["models"][1]["path"])
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors", "snapshot.json"]

    in_words = ray_model(*arguments, "--endpoint-url", proxy.endpoint_url)
    assert in_words.exit_code == 1
    assert good in in_words.stdout
    assert "2 of 3 models failed" in in_words.stderr


def test_an_empty_list_has_nothing_to_fetch(tmp_path: Path):
    (tmp_path / "models.json").write_text('{"models": []}')
    result = ray_model("fetch", "--list", tmp_path / "models.json", "--cache-dir", tmp_path, "--json")
    assert (result.exit_code, document(result)) == (0, {"models": []}), "a pool may have only models in the image"


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("{", ["is not JSON"]),
        ("[]", ["must be a mapping"]),
        ('{"models": [{"ur": "s3://b/m/"}, {"uri": "ftp://x"}]}', ["did you mean 'uri'", "models[1].uri"]),
    ],
)
def test_every_problem_of_a_list_is_bad_input(text: str, problems: list[str], tmp_path: Path):
    (tmp_path / "models.json").write_text(text)
    result = ray_model("fetch", "--list", tmp_path / "models.json", "--json")
    assert result.exit_code == 2
    assert all(problem in document(result)["error"]["message"] for problem in problems)


def test_a_list_that_is_not_there_is_bad_input(tmp_path: Path):
    result = ray_model("fetch", "--list", tmp_path / "models.json")
    assert result.exit_code == 2
    assert "can't be read" in result.stderr


def test_load_adds_seconds_and_memory_to_the_report_of_fetch(tmp_path: Path):
    directory = write_files(tmp_path / "model", large_model(20))
    # A process of its own: in a long-lived one, memory that was freed before hides what a load takes.
    process = start("load", f"file://{directory}", "--cache-dir", tmp_path, "--dtype", "bfloat16", "--json")
    output, errors = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 0, errors
    given = json.loads(output)
    phases = ["resolve", "wait", "download", "verify", "commit", "map", "convert", "transfer", "total"]
    assert list(given["seconds"]) == phases
    assert given["seconds"]["total"] >= given["seconds"]["convert"] > 0
    assert given["memory"]["model_bytes"] == 10 * 1024**2
    assert given["memory"]["peak_anon_bytes"] >= 9 * 1024**2
    assert given["snapshot_id"]


def test_load_with_a_model_class_builds_that_model(minilm: str, tmp_path: Path):
    embedding = "ray_model_serving.models.text_embedding:TextEmbedding"
    result = ray_model("load", minilm, "--cache-dir", tmp_path, "--model-class", embedding, "--json")
    assert result.exit_code == 0, result.output
    memory = document(result)["memory"]
    assert memory["peak_anon_bytes"] < 0.3 * memory["model_bytes"], "mapped, not copied"


@pytest.mark.parametrize("path", ["no_colon", "no.such.module:Class", "json:JSONDecoder", "json:absent"])
def test_a_model_class_that_is_none_is_bad_input(path: str, tmp_path: Path):
    directory = write_files(tmp_path / "model", linear_model())
    result = ray_model("load", f"file://{directory}", "--model-class", path, "--json")
    assert result.exit_code == 2
    assert path in document(result)["error"]["message"]


def test_an_unknown_option_is_bad_input():
    assert ray_model("fetch", "s3://b/m/", "--cachedir", "x").exit_code == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_fetch_publishes_nothing_and_says_so_by_its_exit_code(
    number: signal.Signals, code: int, proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri = bucket.put(large_model(20))
    reached, interrupted = threading.Event(), threading.Event()

    def hold_the_second_part(request: Request, forward: Forward) -> Answer:
        if request.is_object_get and request.range_start > 0:
            reached.set()
            interrupted.wait(_WAIT_S)
        return forward()

    proxy.rule = hold_the_second_part
    process = start("fetch", uri, "--cache-dir", tmp_path, "--endpoint-url", proxy.endpoint_url)
    try:
        assert reached.wait(_WAIT_S)
        process.send_signal(number)
        time.sleep(0.1)
    finally:
        interrupted.set()
        _, errors = process.communicate(timeout=_WAIT_S)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert not list((tmp_path / "snapshots").iterdir())
    assert ray_model("fetch", uri, "--cache-dir", tmp_path, "--endpoint-url", proxy.endpoint_url).exit_code == 0
    assert not list((tmp_path / "staging").iterdir()), "the second run took over what the first one left"
