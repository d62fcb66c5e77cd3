"""Several processes on one node: one download, and nothing partial however one of them ends."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from emulators import Answer, RecordingProxy
from emulators.models import Bucket, large_model, read_files
from emulators.proxy import Forward, Request
from ray_model_serving.store import FetchProgress, ModelStore

_WAIT_S = 30.0
_FETCH = """
import json, sys
from pathlib import Path
from ray_model_serving.store import ModelStore
root, endpoint, uri = sys.argv[1:]
with ModelStore(Path(root), endpoint_url=endpoint, connections=4).ensure(uri) as snapshot:
    print(json.dumps(snapshot.report.to_json()))
"""


def start_fetch(root: Path, proxy: RecordingProxy, uri: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _FETCH, str(root), proxy.endpoint_url, uri]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})


class Gate:
    """Holds back GETs of objects from the given byte on, and says when the first has come in."""

    def __init__(self, from_byte: int) -> None:
        self.reached, self.open, self._from_byte = threading.Event(), threading.Event(), from_byte

    def __call__(self, request: Request, forward: Forward) -> Answer | None:
        if request.is_object_get and request.range_start >= self._from_byte and not self.open.is_set():
            self.reached.set()
            self.open.wait(_WAIT_S)
            return None  # whoever asked is dead
        return forward()


def kill_in_the_middle(root: Path, proxy: RecordingProxy, uri: str) -> None:
    """Start a fetch and SIGKILL it when parts are on disk and others are not."""
    gate = Gate(from_byte=8 * 1024**2)
    proxy.rule = gate
    process = start_fetch(root, proxy, uri)
    try:
        assert gate.reached.wait(_WAIT_S)
        wait_for_claims(root)
        assert not list((root / "snapshots").iterdir()), "and nothing of it is visible"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=_WAIT_S)
        gate.open.set()
    proxy.rule = lambda request, forward: forward()


def test_processes_that_start_together_download_once(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    # UR-087
    files = large_model(20)
    uri = bucket.put(files)
    processes = [start_fetch(tmp_path, proxy, uri) for _ in range(2)]
    outputs = [process.communicate(timeout=_WAIT_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert proxy.object_bytes() == sum(map(len, files.values())), "each byte crosses the network once per node"
    assert sorted(json_bytes(out)["store"] > 0 for out, _ in outputs) == [False, True]
    (snapshot,) = (tmp_path / "snapshots").iterdir()
    assert read_files(snapshot) == files


def test_with_a_pin_only_one_of_many_that_start_at_once_asks_the_store(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-084, UR-087
    files = large_model(20)
    uri = bucket.put(files)
    pin = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).resolve(uri).snapshot_id
    mark, gate = len(proxy.requests()), Gate(from_byte=8 * 1024**2)
    proxy.rule = gate

    def ensure(waits: threading.Event) -> int:
        def listen(now: FetchProgress) -> None:
            if now.phase == "wait":
                waits.set()

        store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, connections=4)
        with store.ensure(uri, snapshot_id=pin, on_progress=listen) as held:
            assert read_files(held.path) == files
            return held.report.bytes_store

    with ThreadPoolExecutor(max_workers=4) as pool:
        first = pool.submit(ensure, threading.Event())
        assert gate.reached.wait(_WAIT_S)
        late = [threading.Event() for _ in range(3)]
        others = [pool.submit(ensure, waits) for waits in late]
        assert all(waits.wait(_WAIT_S) for waits in late)
        before = len(proxy.requests())
        gate.open.set()
        assert [other.result(_WAIT_S) for other in others] == [0, 0, 0]
        assert first.result(_WAIT_S) == sum(map(len, files.values()))
    listings = [request for request in proxy.requests()[mark:] if not request.is_object_get]
    assert len([request for request in listings if request.method == "GET"]) == 1, "the others only wait for the lock"
    assert all(request.is_object_get for request in proxy.requests()[before:])


def test_after_a_kill_in_the_middle_the_next_process_sees_nothing_and_fetches(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-079
    files = large_model(20)
    uri = bucket.put(files)
    kill_in_the_middle(tmp_path, proxy, uri)
    (left,) = (tmp_path / "staging").iterdir()
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
        assert read_files(snapshot.path) == files
        assert snapshot.report.bytes_node > 0, "what the dead process had brought is not fetched again"
        assert snapshot.report.bytes_store + snapshot.report.bytes_node == snapshot.manifest.size_bytes
    assert not left.exists(), "what the dead process left was taken over"


def test_one_who_waited_looks_again_and_fetches_when_the_other_died(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-079, UR-082
    files = large_model(20)
    uri = bucket.put(files)
    gate = Gate(from_byte=8 * 1024**2)
    proxy.rule = gate
    first = start_fetch(tmp_path, proxy, uri)
    try:
        assert gate.reached.wait(_WAIT_S)
        second = start_fetch(tmp_path, proxy, uri)
        wait_until_listed_twice(proxy)
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate(timeout=_WAIT_S)
        gate.open.set()
    output, errors = second.communicate(timeout=_WAIT_S)
    assert second.returncode == 0, errors
    assert json_bytes(output)["store"] > 0, "it did not trust that the one it waited for had finished"
    (snapshot,) = (tmp_path / "snapshots").iterdir()
    assert read_files(snapshot) == files


def test_a_crash_between_the_last_byte_and_the_rename_publishes_nothing(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-079
    files = large_model(9)
    uri = bucket.put(files)
    crash = "import os; from ray_model_serving.store import cache; cache.publish = lambda *_: os._exit(9)\n"
    command = [sys.executable, "-c", crash + _FETCH, str(tmp_path), proxy.endpoint_url, uri]
    assert subprocess.run(command, timeout=_WAIT_S, env={**os.environ}).returncode == 9
    (staged,) = (tmp_path / "staging").iterdir()
    assert read_files(staged / "files") == files, "every byte was there"
    assert not list((tmp_path / "snapshots").iterdir())
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
        assert snapshot.report.bytes_store == 0, "every byte is read again instead, and found right"
    assert not staged.exists()


def json_bytes(output: str) -> dict[str, int]:
    return json.loads(output)["bytes"]


def wait_for_claims(root: Path) -> None:
    """The download has begun, and something of it is on disk."""
    for _ in range(300):
        if any(journal.read_text().count("\n") > 1 for journal in (root / "staging").glob("*/journal")):
            return
        time.sleep(0.05)
    raise AssertionError("nothing was written")


def wait_until_listed_twice(proxy: RecordingProxy) -> None:
    """The second process has resolved the model, so it is at the lock or about to be."""
    for _ in range(300):
        if len(proxy.requests("HEAD")) >= 4:
            return
        time.sleep(0.1)
    raise AssertionError("the second process did not ask the store")
