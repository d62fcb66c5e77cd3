"""``ray-model cache``: documents, exit codes, and that a plan is only a plan."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from emulators import RecordingProxy
from emulators.models import Bucket, large_model, linear_model
from ray_model_serving.cli.app import app
from ray_model_serving.store import ModelStore, Snapshot


def cache(command: str, root: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["cache", command, "--cache-dir", str(root), *map(str, arguments)])


def document(result: Result) -> Any:
    return json.loads(result.stdout)


@pytest.fixture
def snapshots(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path) -> list[Snapshot]:
    """Two that nobody uses; the older one first."""
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url)
    found = [store.ensure(bucket.put(large_model(1), "a/")), store.ensure(bucket.put(linear_model(), "b/"))]
    for snapshot in found:
        snapshot.close()
    return found


def test_list_shows_what_is_there_and_whether_it_is_in_use(
    snapshots: list[Snapshot], proxy: RecordingProxy, tmp_path: Path
):
    first = snapshots[0]
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(first.manifest.source):
        given = document(cache("list", tmp_path, "--json"))
        assert "in use" in cache("list", tmp_path).stdout
    by_name = {item["name"]: item for item in given["items"]}
    assert by_name[first.snapshot_id]["in_use"]
    assert not by_name[snapshots[1].snapshot_id]["in_use"]
    assert by_name[first.snapshot_id]["source"] == first.manifest.source
    assert by_name[first.snapshot_id]["kind"] == "snapshot"
    assert given["bytes"] == sum(item["bytes"] for item in given["items"]) >= first.manifest.size_bytes
    assert given["free_bytes"] > 0


def test_verify_reads_every_byte_and_finds_one_that_changed(snapshots: list[Snapshot], tmp_path: Path):
    good = cache("verify", tmp_path, "--json")
    assert (good.exit_code, document(good)["ok"]) == (0, True)
    weights = snapshots[0].path / "model.safetensors"
    weights.chmod(0o644)
    with weights.open("r+b") as file:
        file.seek(5000)
        file.write(b"\x00\x01\x02\x03")
    bad = cache("verify", tmp_path, "--json")
    assert bad.exit_code == 1
    outcomes = {one["snapshot_id"]: one for one in document(bad)["snapshots"]}
    assert "model.safetensors" in outcomes[snapshots[0].snapshot_id]["problem"], "same size, so only the bytes tell"
    assert outcomes[snapshots[1].snapshot_id]["ok"]
    in_words = cache("verify", tmp_path)
    assert in_words.exit_code == 1
    assert "CRC32/FULL_OBJECT is" in in_words.stdout


def test_prune_shows_its_plan_and_removes_nothing_without_yes(snapshots: list[Snapshot], tmp_path: Path):
    given = cache("prune", tmp_path, "--budget-bytes", 0, "--json")
    assert given.exit_code == 0
    assert not document(given)["executed"]
    assert document(given)["planned_bytes"] == document(given)["bytes"] > 0
    assert all(snapshot.path.exists() for snapshot in snapshots)
    in_words = cache("prune", tmp_path, "--budget-bytes", 0)
    assert "would remove" in in_words.stdout
    assert "--yes does it" in in_words.stdout


def test_prune_with_yes_removes_the_oldest_until_the_budget_holds(snapshots: list[Snapshot], tmp_path: Path):
    given = cache("prune", tmp_path, "--budget-bytes", 512 * 1024, "--yes", "--json")
    assert (given.exit_code, document(given)["fits"]) == (0, True)
    assert [item["name"] for item in document(given)["items"]] == [snapshots[0].snapshot_id]
    assert [snapshot.path.exists() for snapshot in snapshots] == [False, True]
    again = cache("prune", tmp_path, "--budget-bytes", 512 * 1024, "--yes", "--json")
    assert (again.exit_code, document(again)["items"]) == (0, []), "idempotent"


def test_prune_says_no_where_what_is_in_use_is_more_than_the_budget(
    snapshots: list[Snapshot], proxy: RecordingProxy, tmp_path: Path
):
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(snapshots[0].manifest.source) as in_use:
        result = cache("prune", tmp_path, "--budget-bytes", 0, "--yes")
        assert result.exit_code == 1
        assert "over the budget are in use" in result.stdout
        assert in_use.path.exists()
    assert not snapshots[1].path.exists()


@pytest.mark.parametrize("arguments", [["list"], ["verify"], ["prune", "--budget-bytes", 0]])
def test_a_directory_that_is_not_there_is_bad_input(arguments: list[object], tmp_path: Path):
    command, *rest = map(str, arguments)
    result = cache(command, tmp_path / "absent", *rest, "--json")
    assert result.exit_code == 2
    assert document(result)["error"]["kind"] == "bad_input"


def test_an_empty_directory_holds_nothing(tmp_path: Path):
    assert document(cache("list", tmp_path, "--json"))["items"] == []
    assert cache("verify", tmp_path).exit_code == 0
    assert cache("prune", tmp_path, "--budget-bytes", 0, "--yes").exit_code == 0
