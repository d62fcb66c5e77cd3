"""The node's cache: what counts as whole, what is replaced, what is swept, and who may not write."""

import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from emulators import RecordingProxy
from emulators.models import Bucket, linear_model, read_files
from ray_model_serving.contract.cache_format import CacheLayout
from ray_model_serving.store import ModelStore, Snapshot, cache
from ray_model_serving.store.errors import CacheNotWritableError, LockTimeoutError


@pytest.fixture
def store(proxy: RecordingProxy, tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "cache", endpoint_url=proxy.endpoint_url, deadline_s=20)


@pytest.fixture
def cached(store: ModelStore, bucket: Bucket) -> Snapshot:
    """A snapshot that nobody uses any more."""
    snapshot = store.ensure(bucket.put(linear_model()))
    snapshot.close()
    return snapshot


def damage_size(path: Path) -> None:
    os.truncate(path / "model.safetensors", (path / "model.safetensors").stat().st_size - 1)


def damage_missing(path: Path) -> None:
    (path / "config.json").unlink()


def damage_record(path: Path) -> None:
    (path / "snapshot.json").unlink()


def damage_record_text(path: Path) -> None:
    (path / "snapshot.json").chmod(0o644)
    (path / "snapshot.json").write_text("{")


def damage_record_identity(path: Path) -> None:
    record = json.loads((path / "snapshot.json").read_text())
    record["files"][0]["size_bytes"] += 1
    (path / "snapshot.json").chmod(0o644)
    (path / "snapshot.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    "damage", [damage_size, damage_missing, damage_record, damage_record_text, damage_record_identity]
)
def test_a_snapshot_that_is_not_whole_is_fetched_again(
    damage: Callable[[Path], None], store: ModelStore, cached: Snapshot, caplog: pytest.LogCaptureFixture
):
    # UR-079
    inode = cached.path.stat().st_ino
    damage(cached.path)
    with caplog.at_level(logging.WARNING), store.ensure(cached.manifest.source) as again:
        assert again.report.bytes_store == again.manifest.size_bytes
        assert read_files(again.path) == linear_model()
    assert again.path == cached.path
    assert again.path.stat().st_ino != inode, "a snapshot is replaced by a rename, never mended in place"
    assert "not whole" in caplog.text
    assert not list((cached.path.parents[1] / "staging").iterdir())


def test_a_broken_snapshot_is_replaced_beside_those_who_still_use_it(store: ModelStore, bucket: Bucket):
    # UR-079
    uri = bucket.put(linear_model())
    in_use = store.ensure(uri)
    with (in_use.path / "config.json").open("rb") as mapped:
        damage_size(in_use.path)
        with store.ensure(uri) as again:
            assert read_files(again.path) == linear_model(), "waiting for the other replica could take for ever"
        assert mapped.read() == linear_model()["config.json"]
    in_use.close()


def test_a_pin_does_not_make_a_broken_snapshot_good(store: ModelStore, cached: Snapshot):
    damage_size(cached.path)
    with store.ensure(cached.manifest.source, snapshot_id=cached.snapshot_id) as again:
        assert again.report.bytes_store > 0


def test_an_unwritable_cache_is_an_error_that_names_uid_and_path(
    store: ModelStore,
    bucket: Bucket,
    tmp_path: Path,
    as_user_without_rights: Callable[[Path], AbstractContextManager[int]],
):
    # UR-075
    uri = bucket.put(linear_model())
    (tmp_path / "cache").mkdir()
    with as_user_without_rights(tmp_path / "cache") as uid, pytest.raises(CacheNotWritableError) as raised:
        store.ensure(uri)
    assert f"uid {uid}" in raised.value.message
    assert str(tmp_path / "cache") in raised.value.message
    assert "fsGroup" in raised.value.hint
    assert raised.value.permanent


def test_a_cache_root_that_is_a_file_is_the_same_error(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    # UR-075
    (tmp_path / "cache").write_text("")
    with pytest.raises(CacheNotWritableError, match=r"Not a directory|File exists"):
        ModelStore(tmp_path / "cache" / "root", endpoint_url=proxy.endpoint_url).ensure(bucket.put(linear_model()))


def test_the_image_comes_before_the_node_and_the_store(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, cached: Snapshot
):
    baked = ModelStore(tmp_path / "other", baked_root=tmp_path / "cache", endpoint_url=proxy.endpoint_url)
    before = len(proxy.object_gets())
    with baked.ensure(cached.manifest.source) as snapshot:
        assert snapshot.path == cached.path
        assert snapshot.report.bytes_image == snapshot.manifest.size_bytes
    assert len(proxy.object_gets()) == before
    assert not (tmp_path / "other").exists(), "a model in the image needs no cache at all"


def test_staging_of_the_dead_is_swept_and_that_of_the_living_is_not(store: ModelStore, cached: Snapshot):
    # UR-079
    layout = CacheLayout(cached.path.parents[1])
    dead, alive = layout.staging / f"{'d' * 32}.x", layout.staging / f"{'a' * 32}.x"
    for path in (dead, alive):
        (path / "sub").mkdir(parents=True)
        (path / "sub" / "part").write_bytes(b"x")
    with layout.lock("a" * 32).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        store.ensure(cached.manifest.source).close()
        assert alive.exists(), "its fetch holds the lock"
        assert not dead.exists()
    store.ensure(cached.manifest.source).close()
    assert not alive.exists()


def test_a_lock_file_without_a_holder_is_no_obstacle(store: ModelStore, bucket: Bucket, tmp_path: Path):
    # UR-082
    uri = bucket.put(linear_model())
    identity = store.resolve(uri).snapshot_id
    (tmp_path / "cache" / "locks").mkdir(parents=True)
    (tmp_path / "cache" / "locks" / identity).write_text("pid 1 on elsewhere\n")
    with store.ensure(uri) as snapshot:
        assert snapshot.report.seconds["wait"] < 5


def test_a_lock_that_stays_taken_ends_at_the_deadline_and_names_its_holder(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-082
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, deadline_s=0.4)
    uri = bucket.put(linear_model())
    lock = CacheLayout(tmp_path).lock(store.resolve(uri).snapshot_id)
    lock.parent.mkdir()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("pid 4711 on node-a")
        held.flush()
        with pytest.raises(LockTimeoutError, match="pid 4711 on node-a") as raised:
            store.ensure(uri)
    assert not raised.value.permanent


def test_a_file_system_without_locks_still_gets_whole_snapshots(
    store: ModelStore, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
):
    # UR-082
    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    uri, found = bucket.put(linear_model()), list[dict[str, bytes]]()

    def ensure() -> None:
        with ModelStore(store._layout.root, endpoint_url=store._endpoint_url).ensure(uri) as snapshot:
            found.append(read_files(snapshot.path))

    threads = [threading.Thread(target=ensure) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [linear_model()] * 3, "the lock saves bandwidth; the rename makes a snapshot whole"
    assert not list(store._layout.staging.iterdir())


def test_a_snapshot_in_use_is_held_by_a_shared_lock_until_it_is_closed(store: ModelStore, cached: Snapshot):
    snapshot = store.ensure(cached.manifest.source)
    with CacheLayout(cached.path.parents[1]).lock(cached.snapshot_id).open() as evictor:
        with pytest.raises(BlockingIOError):
            fcntl.flock(evictor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        snapshot.close()
        snapshot.close()
        fcntl.flock(evictor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_snapshot_that_was_just_fetched_is_held_shared_and_not_exclusively(store: ModelStore, bucket: Bucket):
    uri = bucket.put(linear_model())
    with store.ensure(uri) as fetched, CacheLayout(fetched.path.parents[1]).lock(fetched.snapshot_id).open() as other:
        assert fetched.report.bytes_store > 0
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)  # other replicas use it at the same time


def test_whoever_gets_the_lock_looks_again_before_it_fetches(
    proxy: RecordingProxy, store: ModelStore, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
):
    # UR-079
    uri = bucket.put(linear_model())
    store.ensure(uri).close()
    before, looks, real = len(proxy.object_gets()), [0], cache.find_whole

    def not_yet(*arguments: Any) -> Any:
        """As if the other process published it just between the look and the lock."""
        looks[0] += 1
        return None if looks[0] <= 2 else real(*arguments)

    monkeypatch.setattr(cache, "find_whole", not_yet)
    store.ensure(uri).close()
    assert len(proxy.object_gets()) == before
