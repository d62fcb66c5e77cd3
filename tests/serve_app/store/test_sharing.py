"""Who shares a node's cache: other users, other containers, other versions of the library, and no working locks."""

import fcntl
import json
import logging
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from emulators import Answer, RecordingProxy
from emulators.models import Bucket, large_model, linear_model, read_files
from emulators.proxy import Forward, Request
from ray_model_serving.contract.cache_format import CacheLayout
from ray_model_serving.store import ModelStore, disk
from ray_model_serving.store.errors import LockTimeoutError
from ray_model_serving.store.staging import KEPT_S

_WAIT_S = 60.0
_GROUP = 54321
_AS_USER = """
import os, sys
from pathlib import Path
root, endpoint, uri, uid, budget = sys.argv[1:]
import ray_model_serving.store.fetching
from ray_model_serving.store import ModelStore
store = ModelStore(Path(root), endpoint_url=endpoint, cache_budget_bytes=int(budget))
store.resolve(uri)  # whatever is imported or read on the way is readable for the first user, and maybe not for others
os.setgroups([]); os.setgid({group}); os.setuid(int(uid)); os.umask(0o022)
with store.ensure(uri) as snapshot:
    print(snapshot.report.bytes_store)
"""


def fetch_as(uid: int, root: Path, proxy: RecordingProxy, uri: str, budget: int = 10**12) -> int:
    """Fetch in a process of that user, all of one group; gives the bytes that came from the store."""
    command = [sys.executable, "-c", _AS_USER.format(group=_GROUP), str(root), proxy.endpoint_url, uri, str(uid)]
    run = subprocess.run([*command, str(budget)], capture_output=True, text=True, timeout=_WAIT_S, env={**os.environ})
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


@pytest.fixture
def shared_root() -> Generator[Path]:
    """As the init container prepares it: of one user, writable for the group."""
    if os.geteuid() != 0:
        pytest.skip("acting as two users needs root")
    # Not below pytest's own folder, which every run closes to other users.
    with tempfile.TemporaryDirectory(prefix="shared-") as folder:
        Path(folder).chmod(0o755)
        root = Path(folder) / "cache"
        root.mkdir()
        os.chown(root, 2001, _GROUP)
        root.chmod(0o2775)
        yield root


def test_two_users_of_a_group_share_snapshots_and_evict_for_each_other(
    proxy: RecordingProxy, bucket: Bucket, shared_root: Path
):
    first, second = bucket.put(large_model(2), "a/"), bucket.put(linear_model(), "b/")
    assert fetch_as(2001, shared_root, proxy, first) > 0
    assert fetch_as(2002, shared_root, proxy, first) == 0, "one download per node, whoever runs"
    (snapshot,) = (shared_root / "snapshots").iterdir()
    assert stat.S_IMODE(snapshot.stat().st_mode) == 0o775
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o444 for file in snapshot.rglob("*") if file.is_file())
    fetch_as(2002, shared_root, proxy, second, budget=2 * 1024**2)
    assert not snapshot.exists(), "the other user's snapshot could go"


def test_what_another_user_left_unfinished_is_removed_and_fetched_anew(
    proxy: RecordingProxy, bucket: Bucket, shared_root: Path
):
    uri = bucket.put(linear_model())
    identity = ModelStore(shared_root, endpoint_url=proxy.endpoint_url).resolve(uri).snapshot_id
    left = shared_root / "staging" / f"{identity}.x"
    (left / "files").mkdir(parents=True)
    (left / "journal").write_text(json.dumps(["ray-model-journal", 1, identity]) + "\n")
    for path in (shared_root / "staging", left, left / "files", left / "journal"):
        os.chown(path, 2001, _GROUP)
        path.chmod(0o775 if path.is_dir() else 0o644)
    assert fetch_as(2002, shared_root, proxy, uri) == sum(map(len, linear_model().values()))
    assert not left.exists()


def test_a_snapshot_of_a_newer_library_is_used_where_the_store_says_what_it_holds(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri = bucket.put(linear_model())
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url)
    with store.ensure(uri) as first:
        record = first.path / "snapshot.json"
    record.chmod(0o644)
    newer = json.dumps({"format_version": 99, "snapshot_id": first.snapshot_id, "whatever": [1]})
    record.write_text(newer)
    before = len(proxy.object_gets())
    for pin in (None, first.snapshot_id):
        with store.ensure(uri, snapshot_id=pin) as again:
            assert (again.path, again.report.bytes_store) == (first.path, 0)
            assert read_files(again.path) == linear_model()
    assert len(proxy.object_gets()) == before
    assert record.read_text() == newer, "two versions on one node do not take turns in replacing each other's records"


def test_a_newer_record_does_not_make_a_cut_file_good(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put(linear_model())
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url)
    store.ensure(uri).close()
    (snapshot,) = (tmp_path / "snapshots").iterdir()
    (snapshot / "snapshot.json").chmod(0o644)
    (snapshot / "snapshot.json").write_text('{"format_version": 99}')
    os.truncate(snapshot / "config.json", 1)
    with store.ensure(uri) as again:
        assert read_files(again.path) == linear_model()


def test_two_writers_whose_locks_both_succeed_never_see_each_others_bytes(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # UR-082: flock on some network file systems succeeds for every caller.
    files = large_model(9)
    uri = bucket.put(files)

    def succeed(descriptor: int, operation: int) -> None:
        """Whoever asks has it."""

    monkeypatch.setattr(fcntl, "flock", succeed)
    both = threading.Barrier(2, timeout=_WAIT_S)

    def meet(request: Request, forward: Forward) -> Answer:
        if request.is_object_get and request.path.endswith("config.json"):
            both.wait()  # neither is done when the other begins
        return forward()

    proxy.rule = meet
    found, errors = list[dict[str, bytes]](), list[BaseException]()

    def ensure() -> None:
        try:
            with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
                found.append(read_files(snapshot.path))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ensure) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_WAIT_S)
    assert (errors, found) == ([], [files, files])
    assert len(list((tmp_path / "snapshots").iterdir())) == 1


def test_without_locks_what_a_dead_process_left_goes_by_its_age(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # UR-082
    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    old, fresh = tmp_path / "staging" / f"{'a' * 32}.x", tmp_path / "staging" / f"{'b' * 32}.x"
    for path in (old, fresh):
        path.mkdir(parents=True)
    then = fresh.stat().st_mtime - KEPT_S - 60
    os.utime(old, (then, then))
    ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(bucket.put(linear_model())).close()
    assert (old.exists(), fresh.exists()) == (False, True)


def test_a_stopped_holder_is_named_when_the_wait_ends(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    # UR-082
    uri = bucket.put(linear_model())
    identity = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).resolve(uri).snapshot_id
    (tmp_path / "locks").mkdir()
    hold = (
        "import sys, signal; from pathlib import Path; from ray_model_serving.store.locks import open_lock\n"
        "lock = open_lock(Path(sys.argv[1])); assert lock.try_exclusive(); lock.sign(); print('held', flush=True)\n"
        "signal.pause()"
    )
    lock = CacheLayout(tmp_path).lock(identity)
    with subprocess.Popen([sys.executable, "-c", hold, str(lock)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(LockTimeoutError, match=f"pid {holder.pid} "):
                ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, deadline_s=0.5).ensure(uri)
        finally:
            holder.kill()
    ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, deadline_s=30).ensure(uri).close()


def test_a_cache_on_a_network_file_system_is_warned_about(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
):
    # UR-082, UR-088
    mounts = f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {tmp_path} rw shared:1 - nfs4 server:/x rw\n"
    real = Path.read_text

    def read_text(path: Path, *args, **kwargs) -> str:
        return mounts if str(path) == "/proc/self/mountinfo" else real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read_text)
    with caplog.at_level(logging.WARNING):
        ModelStore(tmp_path / "cache", endpoint_url=proxy.endpoint_url).ensure(bucket.put(linear_model())).close()
    assert "network file system (nfs4)" in caplog.text
    assert disk.network_type(Path("/elsewhere")) is None
