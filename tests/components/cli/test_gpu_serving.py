"""The command as a person and as a machine meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from eks_gpu_serving.cli.app import app, run

ROOT = Path(__file__).parents[3]


@pytest.fixture
def gpu_serving():
    def run(*arguments: str):
        return CliRunner().invoke(app, list(arguments))

    return run


@pytest.fixture
def project(tmp_path: Path, small_stack):
    """Writes a project whose dev stack is the small stack with changes."""

    def write(**changes) -> str:
        config = {f"eks-gpu-serving:{key}": value for key, value in small_stack(**changes).items()}
        (tmp_path / "Pulumi.yaml").write_text("name: eks-gpu-serving\n")
        (tmp_path / "Pulumi.dev.yaml").write_text(yaml.safe_dump({"config": config}))
        return str(tmp_path)

    return write


def test_help_lists_exactly_the_commands_that_exist(gpu_serving) -> None:
    text = gpu_serving("--help").output
    for command in ("plan", "render"):
        assert command in text
    for unbuilt in ("lint", "simulate", "doctor"):
        assert unbuilt not in text, "a command that is not built must not be offered"


@pytest.mark.parametrize("stack", ["dev", "staging", "prod"])
def test_plan_shows_every_number_that_a_person_needs(gpu_serving, stack) -> None:
    result = gpu_serving("plan", "--stack", stack, "--project", str(ROOT))
    assert result.exit_code == 0, result.output
    for words in ("Pools", "Memory of a worker pod", "object store", "cache budget", "GPU limit", "USD per hour"):
        assert words in result.output


def test_plan_shows_how_many_variants_a_replica_holds_and_what_they_take(gpu_serving, project) -> None:
    variants = [{"name": name, "uri": f"s3://models/{name}/"} for name in ("legal", "medical", "german")]
    given = {"variants": variants, "resident_gib": 2, "gpu_gib": 1.5}
    shown = gpu_serving("plan", "--stack", "dev", "--project", project(model=given)).output
    (row,) = (line for line in shown.splitlines() if "embedding" in line and "GiB" in line)
    cells = [cell.strip() for cell in row.split("│")]
    assert "3, 2.00 GiB loaded" in cells
    assert "3.50 GiB" in cells, "GPU memory is of the model and of what it has loaded"
    document = json.loads(gpu_serving("plan", "--stack", "dev", "--json", "--project", project(model=given)).stdout)
    (model,) = document["models"]
    assert (model["device_bytes"], model["resident_variant_bytes"]) == (3.5 * 1024**3, 2 * 1024**3)
    assert model["prefetched_variants"] == ["legal", "medical"]
    without = gpu_serving("plan", "--stack", "dev", "--project", project()).output
    assert any("none" in line.split("│")[7] for line in without.splitlines() if line.count("│") == 10)


def test_plan_as_json_is_one_document_on_stdout(gpu_serving) -> None:
    result = gpu_serving("plan", "--stack", "dev", "--json", "--project", str(ROOT))
    document = json.loads(result.stdout)
    assert document["fits"] is True
    assert document["pools"][0]["pod"]["limit_bytes"] > 0
    assert document["serving"]["models"][0]["name"] == "text-embedding"


def test_a_refused_stack_exits_1_with_every_reason_on_stderr(gpu_serving, project) -> None:
    folder = project(model={"max_replicas": 5, "gpu_gib": 90})
    result = gpu_serving("plan", "--stack", "dev", "--project", folder)
    assert result.exit_code == 1
    assert "2 problems" in result.stderr
    assert result.stdout == ""


def test_bad_input_exits_2_and_names_the_file_and_the_nearest_key(gpu_serving, project) -> None:
    folder = project(regoin="us-east-1")
    result = gpu_serving("plan", "--stack", "dev", "--project", folder)
    assert result.exit_code == 2
    assert "Pulumi.dev.yaml: 1 problem" in result.stderr
    assert "did you mean 'region'?" in result.stderr


def test_errors_as_json_have_the_contracts_shape(gpu_serving, project) -> None:
    folder = project(model={"max_replicas": 5})
    result = gpu_serving("plan", "--stack", "dev", "--json", "--project", folder)
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert set(document["error"]) == {"kind", "message", "permanent", "hint"}
    assert document["error"]["kind"] == "refused"
    assert document["problems"][0]["path"] == "node_groups[0] (l4).max_nodes"


def test_render_writes_one_file_per_document_and_says_which(gpu_serving, tmp_path) -> None:
    out = tmp_path / "rendered"
    result = gpu_serving("render", "--stack", "prod", "--out", str(out), "--project", str(ROOT))
    assert result.exit_code == 0, result.output
    written = sorted(path for path in out.rglob("*") if path.is_file() and path.name != ".rendered")
    assert sorted(result.stdout.split()) == [str(path) for path in written]


def test_a_second_render_leaves_nothing_of_the_first_and_all_that_is_not_its_own(
    gpu_serving, project, tmp_path
) -> None:
    out = tmp_path / "rendered"
    for name in ("first", "second"):
        folder = project(pool={"name": name})
        assert gpu_serving("render", "-s", "dev", "-o", str(out), "--project", folder).exit_code == 0
        (out / "mine.yaml").write_text("a: b\n")
    pools = [path.parent.name for path in out.rglob("user-data*")]
    assert pools == ["second"], "a folder with documents of two stacks would be applied as one"
    assert (out / "mine.yaml").exists()


def test_a_list_of_documents_that_names_files_elsewhere_deletes_none(gpu_serving, project, tmp_path) -> None:
    out, elsewhere = tmp_path / "rendered", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.write_text("x")
    (out / ".rendered").write_text(f"../elsewhere\n{elsewhere}\n")
    assert gpu_serving("render", "-s", "dev", "-o", str(out), "--project", project()).exit_code == 0
    assert elsewhere.exists()


def test_plan_says_what_nobody_does(gpu_serving, project) -> None:
    folder = project(pool={"max_nodes": 6}, model={"max_replicas": 3}, ray={"upgrade": "new_cluster"})
    document = json.loads(gpu_serving("plan", "-s", "dev", "--json", "--project", folder).stdout)
    (note,) = document["notes"]
    assert "Nothing in this stack adds nodes: node group l4 starts with 1 of at most 6 nodes" in note
    assert "3 worker pods, twice as many during an upgrade) need 6" in note
    assert "Nothing in this stack adds nodes" in gpu_serving("plan", "-s", "dev", "--project", folder).output
    full = project(pool={"min_nodes": 6, "max_nodes": 6}, model={"max_replicas": 3}, ray={"upgrade": "new_cluster"})
    assert json.loads(gpu_serving("plan", "-s", "dev", "--json", "--project", full).stdout)["notes"] == []


def test_the_plan_carries_the_name_of_the_stack_that_was_asked_for(gpu_serving, project, tmp_path) -> None:
    folder = Path(project())
    (folder / "Pulumi.dev.yaml").rename(folder / "Pulumi.blue.yaml")
    document = json.loads(gpu_serving("plan", "-s", "blue", "--json", "--project", str(folder)).stdout)
    assert (document["stack"], document["environment"]) == ("blue", "dev")


@pytest.mark.parametrize("arguments", [["plan", "--json", "--nope"], ["plan", "--json"], ["nope", "--json"]])
def test_usage_errors_with_json_are_json(arguments, capsys) -> None:
    with pytest.raises(SystemExit) as left:
        run(arguments)
    assert left.value.code == 2
    document = json.loads(capsys.readouterr().out)
    assert document["error"]["kind"] == "bad_input"
    assert document["error"]["message"]


@pytest.mark.parametrize(("extra", "code"), [({}, 0), ({"model": {"max_replicas": 5}}, 1), ({"nope": 1}, 2)])
def test_the_exit_code_is_the_same_with_and_without_json(project, capsys, extra, code) -> None:
    folder = project(**extra)
    for options in ([], ["--json"]):
        with pytest.raises(SystemExit) as left:
            run(["plan", "-s", "dev", "--project", folder, *options])
        assert left.value.code == code
    capsys.readouterr()


def test_ctrl_c_during_the_start_ends_without_a_stack_trace(tmp_path) -> None:
    # In place of a slow import: a module that the command needs interrupts its own process.
    (tmp_path / "typer.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    code = "from eks_gpu_serving.cli.entry import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_a_refused_stack_renders_nothing(gpu_serving, project, tmp_path) -> None:
    folder = project(model={"max_replicas": 5})
    out = tmp_path / "rendered"
    assert gpu_serving("render", "--stack", "dev", "--out", str(out), "--project", folder).exit_code == 1
    assert not out.exists(), "half a set of documents would be taken for a whole one"


def test_render_into_a_file_is_bad_input(gpu_serving, tmp_path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x")
    result = gpu_serving("render", "--stack", "dev", "--out", str(blocked), "--project", str(ROOT))
    assert result.exit_code == 2
    assert "file" in result.stderr
