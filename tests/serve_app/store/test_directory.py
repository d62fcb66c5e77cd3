"""A model that is on disk already is used where it lies."""

from pathlib import Path

import pytest

from emulators.models import linear_model, write_files
from ray_model_serving.store import ModelStore
from ray_model_serving.store.errors import DirectoryNotFoundError, NoObjectsError, SnapshotMismatchError


def test_a_directory_is_used_in_place_without_a_cache(tmp_path: Path):
    directory = write_files(tmp_path / "model", linear_model())
    with ModelStore(tmp_path / "cache").ensure(f"file://{directory}") as snapshot:
        assert snapshot.path == directory
        assert snapshot.report.bytes_node == sum(map(len, linear_model().values()))
    assert not (tmp_path / "cache").exists()


def test_a_changed_file_changes_the_id_and_breaks_the_pin(tmp_path: Path):
    directory = write_files(tmp_path / "model", linear_model())
    store = ModelStore(tmp_path / "cache")
    pin = store.resolve(f"file://{directory}").snapshot_id
    store.ensure(f"file://{directory}", snapshot_id=pin).close()
    (directory / "config.json").write_bytes(b'{"hidden": 4}')
    with pytest.raises(SnapshotMismatchError):
        store.ensure(f"file://{directory}", snapshot_id=pin)


@pytest.mark.parametrize(("name", "error"), [("absent", DirectoryNotFoundError), ("empty", NoObjectsError)])
def test_no_directory_and_no_files_are_errors(name: str, error: type[Exception], tmp_path: Path):
    # UR-029
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=name):
        ModelStore(tmp_path / "cache").ensure(f"file://{tmp_path / name}")
