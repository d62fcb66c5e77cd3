"""What a store and the network before it can do wrong, and that no partial or mixed snapshot comes of it."""

import os
import pickle
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from emulators import Answer, RecordingProxy, answer, times
from emulators.models import Bucket, large_model, linear_model, read_files
from emulators.proxy import Forward, Request
from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.store import ModelStore
from ray_model_serving.store.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    NoSpaceError,
    ObjectReplacedError,
    StoreRefusedError,
    StoreUnavailableError,
    UnusableKeysError,
)


def is_get(request: Request) -> bool:
    return request.is_object_get


def drop(request: Request, forward: Forward) -> None:
    """Close the connection without an answer."""


def cut(request: Request, forward: Forward) -> Answer:
    """The right length in the header, and half of it in the body."""
    whole = forward()
    return replace(whole, cut_at=len(whole.body) // 2)


def nothing_is_visible(root: Path, *, kept: bool = False) -> bool:
    """No snapshot; and no staging, unless it was kept for the next attempt to go on with."""
    snapshots, staging = (
        list(folder.iterdir()) if folder.exists() else [] for folder in (root / "snapshots", root / "staging")
    )
    return not snapshots and bool(staging) == kept


@pytest.mark.parametrize(
    "fault", [answer(503, "SlowDown"), answer(500, "InternalError"), drop, cut], ids=["503", "500", "reset", "short"]
)
def test_transient_faults_are_retried(fault, proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    files = linear_model()
    uri = bucket.put(files)
    proxy.rule = times(2, fault, only=is_get)
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
        assert read_files(snapshot.path) == files
    assert len(proxy.object_gets()) == len(files) + 2, "one retry of ours for each fault, and none of botocore's"


def test_a_body_that_stalls_is_given_up_after_the_read_timeout_and_asked_for_again(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # UR-085
    files = linear_model()
    uri = bucket.put(files)
    monkeypatch.setattr("ray_model_serving.store.s3_client.READ_TIMEOUT_S", 0.5)
    over = threading.Event()

    def stall(request: Request, forward: Forward) -> None:
        over.wait(30)

    proxy.rule = times(1, stall, only=is_get)
    try:
        with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
            assert read_files(snapshot.path) == files
    finally:
        over.set()


def test_requests_at_once_stay_within_the_connections(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    # UR-084
    uri = bucket.put({**large_model(20), **linear_model()})
    now, most, lock = [0], [0], threading.Lock()

    def count(request: Request, forward: Forward) -> Answer:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        try:
            return forward()
        finally:
            with lock:
                now[0] -= 1

    proxy.rule = count
    ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, connections=2).ensure(uri).close()
    assert 1 <= most[0] <= 2


def test_a_store_that_stays_away_ends_at_the_deadline_and_may_be_tried_again(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri = bucket.put(linear_model())
    proxy.rule = answer(503, "SlowDown")
    with pytest.raises(StoreUnavailableError) as raised:
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, deadline_s=0.5).ensure(uri)
    assert not raised.value.permanent
    assert "SlowDown" in raised.value.message
    assert nothing_is_visible(tmp_path)


def test_an_endpoint_where_nothing_listens_is_named(tmp_path: Path):
    store = ModelStore(tmp_path, endpoint_url="http://127.0.0.1:9", deadline_s=0.3)
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:9"):
        store.ensure("s3://bucket/m/")


def test_a_bucket_that_does_not_exist_is_named(proxy: RecordingProxy, tmp_path: Path):
    with pytest.raises(BucketNotFoundError, match="no-such-bucket"):
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure("s3://no-such-bucket/m/")
    assert len(proxy.requests()) == 1, "a permanent failure is not retried"


def test_403_says_denied_or_missing_names_the_caller_and_is_not_retried(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-062
    uri = bucket.put(linear_model())
    proxy.rule = times(9, answer(403, "AccessDenied"), only=lambda r: r.method == "HEAD" and r.path.endswith(".json"))
    with pytest.raises(AccessDeniedError) as raised:
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri)
    assert "access denied, or the key does not exist" in raised.value.message
    assert "arn:aws:iam::000000000000:root" in raised.value.message, "which identity was used ends most of the search"
    assert raised.value.permanent
    assert len([r for r in proxy.requests("HEAD") if r.path.endswith(".json")]) == 1


def test_every_denied_object_is_reported_at_once(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    # UR-029
    files = linear_model()
    uri = bucket.put(files)
    proxy.rule = times(9, answer(403, "AccessDenied"), only=lambda r: r.method == "HEAD")
    with pytest.raises(AccessDeniedError) as raised:
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri)
    assert all(name in raised.value.message for name in files)


def test_one_denied_object_fails_the_whole_model(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    # UR-029
    uri = bucket.put(linear_model())
    proxy.rule = times(9, answer(403, "AccessDenied"), only=lambda r: is_get(r) and r.path.endswith("config.json"))
    with pytest.raises(AccessDeniedError, match=r"config\.json"):
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri)
    assert nothing_is_visible(tmp_path)


def test_an_object_replaced_between_ranges_gives_the_new_revision_and_never_a_mixture(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-081
    old, new = large_model(20), {name: bytes(reversed(content)) for name, content in large_model(20).items()}
    new["model.safetensors"] = old["model.safetensors"][:1000] + bytes(len(old["model.safetensors"]) - 1000)
    uri = bucket.put(old)
    replaced = threading.Event()

    def replace_before_the_second_part(request: Request, forward: Forward) -> Answer:
        if is_get(request) and request.range_start > 0 and not replaced.is_set():
            replaced.set()
            bucket.put(new)
        return forward()

    proxy.rule = replace_before_the_second_part
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, connections=1).ensure(uri) as snapshot:
        assert read_files(snapshot.path) == new
    assert replaced.is_set()
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == [snapshot.snapshot_id]


def test_with_versions_a_replaced_object_is_still_fetched_as_it_was(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-081
    bucket.s3.client().put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"})
    old = linear_model()
    uri = bucket.put(old)
    replaced = threading.Event()

    def replace_first(request: Request, forward: Forward) -> Answer:
        if is_get(request) and not replaced.is_set():
            replaced.set()
            bucket.put({name: content + b" " for name, content in old.items()})
        return forward()

    proxy.rule = replace_first
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, connections=1).ensure(uri) as snapshot:
        assert read_files(snapshot.path) == old
    assert replaced.is_set()


def test_an_object_that_never_stands_still_is_an_error_after_one_new_start(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-081
    uri = bucket.put(linear_model())
    proxy.rule = times(99, answer(412, "PreconditionFailed"), only=is_get)
    with pytest.raises(ObjectReplacedError):
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri)
    assert len([r for r in proxy.requests("GET") if not is_get(r)]) == 2, "listed once, and once more"
    assert nothing_is_visible(tmp_path)


def test_a_disk_that_is_too_small_is_found_before_the_first_byte(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    uri = bucket.put(linear_model())
    real = os.statvfs(tmp_path)
    full = os.statvfs_result([*real[:4], 0, *real[5:]])  # f_bavail, what is free for anyone but root
    monkeypatch.setattr(os, "statvfs", Mock(return_value=full))
    with pytest.raises(NoSpaceError) as raised:
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri)
    assert "0 bytes are free" in raised.value.message
    assert not proxy.object_gets()
    assert nothing_is_visible(tmp_path)


def test_a_disk_that_fills_up_meanwhile_is_no_space_too(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    uri = bucket.put(linear_model())

    def full(descriptor: int, block: memoryview, offset: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NoSpaceError, match="No space left on device"):
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri)
    assert nothing_is_visible(tmp_path)


def test_a_store_that_ignores_ranges_is_refused(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put(large_model(9))

    def whole(request: Request, forward: Forward) -> Answer:
        got = forward()
        if not is_get(request):
            return got
        return replace(got, status=200, headers={k: v for k, v in got.headers.items() if k != "content-range"})

    proxy.rule = whole
    with pytest.raises(StoreRefusedError, match="does not serve byte ranges"):
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri)
    assert nothing_is_visible(tmp_path)


def test_hostile_keys_are_all_refused_and_nothing_is_written_outside(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    hostile = {
        "../escape": b"x",
        "a/../../b": b"x",
        "/absolute": b"x",
        "dir/": b"x",
        "a\x01b": b"x",
        "config.json/x": b"x",
    }
    uri = bucket.put({**linear_model(), **hostile})
    with pytest.raises(UnusableKeysError) as raised:
        ModelStore(tmp_path / "cache", endpoint_url=proxy.endpoint_url).ensure(uri)
    assert all(repr(key) in raised.value.message for key in hostile)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_directory_markers_are_left_out_and_empty_files_are_kept(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put({**linear_model(), "": b"", "tokenizer/": b"", "empty.txt": b""})
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
        assert sorted(read_files(snapshot.path)) == sorted([*linear_model(), "empty.txt"])


def test_an_interrupted_fetch_frees_the_lock_and_shows_nothing_partial(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri = bucket.put(large_model(9))
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url)

    def interrupt(now) -> None:
        if now.phase == "download":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.ensure(uri, on_progress=interrupt)
    assert nothing_is_visible(tmp_path, kept=True)
    store.ensure(uri).close()
    assert not list((tmp_path / "staging").iterdir())


def test_errors_cross_process_boundaries_whole(proxy: RecordingProxy, tmp_path: Path):
    with pytest.raises(ModelServingError) as raised:
        ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure("s3://no-such-bucket/m/")
    copy = pickle.loads(pickle.dumps(raised.value))
    assert copy.to_json() == raised.value.to_json()
