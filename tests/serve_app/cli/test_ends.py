"""How ``ray-model`` ends: one document and one exit code, whatever happens and whenever."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from emulators import RecordingProxy
from emulators.models import Bucket, linear_model, write_files
from ray_model_serving.cli import commands
from ray_model_serving.cli.app import app

_WAIT_S = 60.0


def start(*arguments: object, code: str = "from ray_model_serving.cli import main; main()") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "NO_COLOR": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize(
    "arguments",
    [
        ["fetch", "s3://b/m/", "--cachedir", "x"],
        ["load"],
        ["fetch", "s3://b/m/", "--cache-budget-gib", "much"],
        ["nope"],
    ],
)
def test_usage_errors_are_documents_too(arguments: list[str]):
    process = start(*arguments, "--json")
    output, errors = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 2
    assert json.loads(output)["error"]["kind"] == "bad_input"
    assert errors == ""


_SIGNAL_WHILE_IMPORTING = """
import signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            signal.raise_signal(signal.{name})
sys.meta_path.insert(0, Finder())
from ray_model_serving.cli import main
main()
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
@pytest.mark.parametrize("as_json", [True, False])
def test_a_signal_while_modules_are_imported_ends_quietly(name: str, code: int, as_json: bool):
    arguments = ["fetch", "s3://b/m/", *(["--json"] if as_json else [])]
    process = start(*arguments, code=_SIGNAL_WHILE_IMPORTING.replace("{name}", name))
    output, errors = process.communicate(timeout=_WAIT_S)
    assert (process.returncode, errors) == (code, "")
    assert json.loads(output)["error"]["kind"] == "interrupted" if as_json else output == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_a_command_is_one_document(
    number: signal.Signals, code: int, proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri = bucket.put(linear_model())
    processes: list[subprocess.Popen[str]] = []

    def interrupt(request, forward):
        processes[0].send_signal(number)
        return forward()

    proxy.rule = interrupt
    processes.append(start("fetch", uri, "--cache-dir", tmp_path, "--endpoint-url", proxy.endpoint_url, "--json"))
    output, errors = processes[0].communicate(timeout=_WAIT_S)
    assert processes[0].returncode == code, errors
    assert json.loads(output)["error"]["kind"] == "interrupted"
    assert "Traceback" not in errors


@pytest.mark.parametrize("debug", [True, False])
def test_a_fault_of_the_program_is_a_document_and_its_traceback_is_for_those_who_ask(
    debug: bool, monkeypatch: pytest.MonkeyPatch
):
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(commands, "inspection", fail)
    if debug:
        monkeypatch.setenv("RAY_MODEL_DEBUG", "1")
    result = CliRunner().invoke(app, ["inspect", "s3://models/m/", "--json"])
    assert result.exit_code == 1
    error = json.loads(result.stdout)["error"]
    assert (error["kind"], error["message"]) == ("internal", "ZeroDivisionError: a bug")
    assert ("Traceback" in result.stderr) == debug


def test_an_endpoint_that_is_none_is_bad_input(tmp_path: Path):
    result = CliRunner().invoke(
        app, ["fetch", "s3://models/m/", "--cache-dir", str(tmp_path), "--endpoint-url", "junk", "--json"]
    )
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["kind"] == "aws_configuration"


_MODULES = {
    "raises_at_import": "raise RuntimeError('no GPU')",
    "does_not_parse": "class Model(:",
    "exits": "raise SystemExit(3)",
    "is_abstract": "from ray_model_serving.model import ServedModel\nclass Model(ServedModel): pass",
    "fails_to_start": (
        "from ray_model_serving.model import ServedModel\nclass Model(ServedModel):\n"
        "    def __init__(self): raise ValueError('x')\n"
        "    def build(self, directory): ...\n    def predict_batch(self, inputs): ..."
    ),
}


@pytest.mark.parametrize("name", _MODULES)
def test_a_model_class_whose_module_fails_is_bad_input(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module = f"model_of_test_{name}"
    write_files(tmp_path / "code", {f"{module}.py": _MODULES[name].encode()})
    monkeypatch.syspath_prepend(tmp_path / "code")
    directory = write_files(tmp_path / "model", linear_model())
    result = CliRunner().invoke(app, ["load", f"file://{directory}", "--model-class", f"{module}:Model", "--json"])
    assert result.exit_code == 2, result.output
    assert module in json.loads(result.stdout)["error"]["message"]


def test_a_budget_is_kept_from_the_option_and_from_the_list(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put(linear_model())
    common = ["--cache-dir", str(tmp_path / "cache"), "--endpoint-url", proxy.endpoint_url, "--json"]
    (tmp_path / "models.json").write_text(json.dumps({"models": [{"uri": uri}], "cache_budget_bytes": 1}))
    by_option = CliRunner().invoke(app, ["fetch", uri, "--cache-budget-gib", "0", *common])
    assert (by_option.exit_code, json.loads(by_option.stdout)["error"]["kind"]) == (1, "no_space")
    by_list = CliRunner().invoke(app, ["fetch", "--list", str(tmp_path / "models.json"), *common])
    assert json.loads(by_list.stdout)["models"][0]["error"]["kind"] == "no_space"
    wider = ["fetch", "--list", str(tmp_path / "models.json"), "--cache-budget-gib", "1", *common]
    assert CliRunner().invoke(app, wider).exit_code == 0, "the option is nearer than the list"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_gate_that_is_ended_says_what_goes_on_without_it(number: int, code: int):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a dashboard that takes the connection and says nothing
        process = start("warmup", "--address", f"http://127.0.0.1:{silent.getsockname()[1]}", "--json")
        silent.settimeout(_WAIT_S)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(number)
            output, _ = process.communicate(timeout=_WAIT_S)
    assert process.returncode == code
    error = json.loads(output)["error"]
    assert (error["kind"], error["hint"]) == ("interrupted", "the loads go on; run it again for the verdict")
