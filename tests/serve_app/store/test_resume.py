"""What a killed download leaves is gone on with, after it was read again; and nothing else is."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from emulators import Answer, RecordingProxy, answer, times
from emulators.models import Bucket, large_model, read_files
from emulators.proxy import Forward, Request
from ray_model_serving.contract.cache_format import CacheLayout
from ray_model_serving.store import ModelStore
from ray_model_serving.store.errors import StoreUnavailableError
from ray_model_serving.store.locks import open_lock
from ray_model_serving.store.staging import KEPT_S

_WAIT_S = 60.0
_CONNECTIONS = 2
_FETCH = f"""
import sys
from pathlib import Path
from ray_model_serving.store import ModelStore
root, endpoint, uri = sys.argv[1:]
ModelStore(Path(root), endpoint_url=endpoint, connections={_CONNECTIONS}).ensure(uri).close()
"""


def start_fetch(root: Path, proxy: RecordingProxy, uri: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _FETCH, str(root), proxy.endpoint_url, uri]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ})


def journaled_bytes(root: Path) -> int:
    """What the journals claim: the longest extent from each offset."""
    best: dict[tuple[str, int], int] = {}
    for journal in (root / "staging").glob("*/journal"):
        for line in journal.read_text().splitlines()[1:]:
            path, offset, length, _ = json.loads(line)
            best[path, offset] = max(length, best.get((path, offset), 0))
    return sum(best.values())


def kill_at(root: Path, proxy: RecordingProxy, uri: str, at_bytes: int) -> None:
    """SIGKILL a fetch when that many bytes went out and it has taken in all of them."""
    over = threading.Event()

    def pause(sent: int) -> None:
        if proxy.object_bytes() >= at_bytes:
            over.wait(_WAIT_S)
            raise ConnectionError("whoever asked is dead")

    def hold(request: Request, forward: Forward) -> Answer:
        got = forward()
        if not request.is_object_get:
            return got
        return replace(got, pace=pause)

    proxy.rule = hold
    process = start_fetch(root, proxy, uri)
    try:
        settled, before = 0, -1
        for _ in range(int(_WAIT_S / 0.1)):
            now = journaled_bytes(root)
            settled = settled + 1 if proxy.object_bytes() >= at_bytes and now == before else 0
            if settled == 5:
                break
            before = now
            time.sleep(0.1)
        assert settled == 5, "the download did not come that far"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=_WAIT_S)
        over.set()
    proxy.rule = lambda request, forward: forward()


@pytest.mark.parametrize("percent", [20, 50, 90])
def test_after_a_kill_only_what_was_missing_is_fetched_again(
    percent: int, proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-079
    files = large_model(64)
    size = sum(map(len, files.values()))
    uri = bucket.put(files)
    kill_at(tmp_path, proxy, uri, size * percent // 100)
    sent = proxy.object_bytes()
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url, connections=_CONNECTIONS).ensure(uri) as snapshot:
        assert read_files(snapshot.path) == files
        again = proxy.object_bytes() - sent
        assert again <= (size - sent) + 0.02 * size, f"{again} bytes again, {size - sent} were missing"
        assert snapshot.report.bytes_store == again
        assert snapshot.report.bytes_node == size - again
    assert not list((tmp_path / "staging").iterdir())


def leave_half(root: Path, proxy: RecordingProxy, bucket: Bucket) -> tuple[str, Path]:
    """A fetch that fails for a while when it is half done; gives the model's URI and what stays."""
    uri = bucket.put(large_model(20))
    proxy.rule = lambda request, forward: (
        answer(503, "SlowDown")(request, forward) if request.range_start >= 8 * 1024**2 else forward()
    )
    with pytest.raises(StoreUnavailableError):
        ModelStore(root, endpoint_url=proxy.endpoint_url, connections=1, deadline_s=1).ensure(uri)
    proxy.rule = lambda request, forward: forward()
    (left,) = (root / "staging").iterdir()
    return uri, left


def fetched_again(root: Path, proxy: RecordingProxy, uri: str) -> int:
    """Bytes that the next fetch needs; its content is right."""
    with ModelStore(root, endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
        assert read_files(snapshot.path) == large_model(20)
        return snapshot.report.bytes_store


def test_a_fetch_that_ran_into_its_deadline_is_gone_on_with(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri, left = leave_half(tmp_path, proxy, bucket)
    size = sum(map(len, large_model(20).values()))
    assert fetched_again(tmp_path, proxy, uri) <= size - 8 * 1024**2
    assert not left.exists()


def lose_the_bytes(left: Path) -> None:
    """After a power cut, the journal may be there and the data not."""
    weights = left / "files" / "model.safetensors"
    size = weights.stat().st_size
    weights.unlink()
    with weights.open("wb") as file:
        file.truncate(size)


def flip_a_bit(left: Path) -> None:
    with (left / "files" / "model.safetensors").open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)
        file.seek(1000)
        file.write(bytes([byte[0] ^ 1]))


def cut_the_file(left: Path) -> None:
    os.truncate(left / "files" / "model.safetensors", 1000)


@pytest.mark.parametrize("damage", [lose_the_bytes, flip_a_bit, cut_the_file])
def test_claims_that_the_disk_does_not_bear_out_are_fetched_again(
    damage: Callable[[Path], None], proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri, left = leave_half(tmp_path, proxy, bucket)
    damage(left)
    assert fetched_again(tmp_path, proxy, uri) == len(large_model(20)["model.safetensors"])


def garble_the_last_line(journal: Path) -> None:
    journal.write_bytes(journal.read_bytes()[:-7])


def add_garbage(journal: Path) -> None:
    with journal.open("ab") as file:
        file.write(b'\x00\xff{"a":[1\n[["x"],1,2,3]\n["model.safetensors",-1,2,3]\n["model.safetensors",true,1,1]\n7\n')


@pytest.mark.parametrize("damage", [garble_the_last_line, add_garbage])
def test_a_journal_with_torn_lines_keeps_its_good_ones(
    damage: Callable[[Path], None], proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri, left = leave_half(tmp_path, proxy, bucket)
    damage(left / "journal")
    size = sum(map(len, large_model(20).values()))
    assert fetched_again(tmp_path, proxy, uri) < size


def test_a_journal_of_another_version_is_neither_adopted_nor_removed(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri, left = leave_half(tmp_path, proxy, bucket)
    lines = (left / "journal").read_text().splitlines()
    header = json.loads(lines[0])
    header[1] += 1
    (left / "journal").write_text("\n".join([json.dumps(header), *lines[1:]]))
    assert fetched_again(tmp_path, proxy, uri) == sum(map(len, large_model(20).values()))
    assert left.exists(), "a newer library may go on with it"
    days_ago = time.time() - KEPT_S - 60
    for path in (left, left / "journal"):
        os.utime(path, (days_ago, days_ago))
    ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri).close()
    assert not left.exists(), "but not for ever"


def test_a_journal_of_another_snapshot_is_not_adopted(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri, left = leave_half(tmp_path, proxy, bucket)
    text = (left / "journal").read_text()
    (left / "journal").write_text(text.replace(left.name.partition(".")[0], "0" * 32))
    assert fetched_again(tmp_path, proxy, uri) == sum(map(len, large_model(20).values()))


def test_what_is_left_of_one_model_outlives_the_fetch_of_another(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri, left = leave_half(tmp_path, proxy, bucket)
    other = bucket.put(large_model(1), "other/")
    ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(other).close()
    assert left.exists()
    assert fetched_again(tmp_path, proxy, uri) < sum(map(len, large_model(20).values()))


def test_a_clock_that_jumped_does_not_make_staging_old(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    _uri, left = leave_half(tmp_path, proxy, bucket)
    future = time.time() + 10 * KEPT_S
    for path in (left, left / "journal"):
        os.utime(path, (future, future))
    other = bucket.put(large_model(1), "other/")
    ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(other).close()
    assert left.exists()


def test_old_staging_of_a_living_download_stays(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    _uri, left = leave_half(tmp_path, proxy, bucket)
    os.utime(left, (0, 0))
    os.utime(left / "journal", (0, 0))
    lock = open_lock(CacheLayout(tmp_path).lock(left.name.partition(".")[0]))
    assert lock.try_exclusive()
    other = bucket.put(large_model(1), "other/")
    ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(other).close()
    assert left.exists(), "the lock is the proof of life, not the clock"
    lock.release()


def test_a_body_that_was_cut_goes_on_from_its_last_block(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    files = large_model(3)
    uri = bucket.put(files)
    cut_at = 2 * 1024**2 + 17

    def cut(request: Request, forward: Forward) -> Answer:
        return replace(forward(), cut_at=cut_at)

    proxy.rule = times(1, cut, only=lambda r: r.is_object_get and r.path.endswith(".safetensors"))
    ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri).close()
    weights = [get for get in proxy.object_gets() if get.path.endswith(".safetensors")]
    assert [get.range_start for get in weights] == [0, 2 * 1024**2], "only the part of a block is lost"
