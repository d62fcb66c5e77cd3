"""One cache directory as containers see it: a root that is read-only, process numbers of their own, one host path."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from emulators import RecordingProxy
from emulators.models import Bucket, large_model, linear_model, read_files
from emulators.proxy import Forward, Request
from ray_model_serving.store import ModelStore

_WAIT_S = 60.0
_FETCH = """
import json, os, sys
from pathlib import Path
from ray_model_serving.store import ModelStore
root, endpoint, uri = sys.argv[1:]
with ModelStore(Path(root), endpoint_url=endpoint, connections=4).ensure(uri) as snapshot:
    print(json.dumps({"pid": os.getpid(), **snapshot.report.to_json()["bytes"]}))
"""
# A mount namespace of its own, in which only the cache can be written to.
_READ_ONLY_ROOT = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
for point in / /tmp /dev/shm; do mount --bind "$point" "$point"; mount -o remount,bind,ro "$point"; done
mount --bind "$1" "$1" && mount -o remount,bind,rw "$1"
shift
exec "$@"
"""


@pytest.fixture(autouse=True)
def namespaces() -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("mount namespaces need root")


def fetch(root: Path, proxy: RecordingProxy, uri: str, *around: str) -> subprocess.Popen[str]:
    command = [*around, sys.executable, "-c", _FETCH, str(root), proxy.endpoint_url, uri]
    environment = {**os.environ, "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def report(process: subprocess.Popen[str]) -> dict[str, int]:
    output, errors = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 0, errors
    return json.loads(output)


def test_a_container_whose_root_is_read_only_needs_to_write_to_the_cache_only(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri = bucket.put(linear_model())
    around = ["unshare", "-m", "sh", "-c", _READ_ONLY_ROOT, "sh", str(tmp_path)]
    probe = 'for d in / /tmp /root; do touch $d/x 2>/dev/null && echo writable $d; done; touch "$0"/x'
    check = subprocess.run([*around, "sh", "-c", probe, str(tmp_path)], capture_output=True, text=True)
    assert (check.returncode, check.stdout) == (0, ""), "the test itself: only the cache may be written to"
    assert report(fetch(tmp_path, proxy, uri, *around))["store"] > 0
    (snapshot,) = (tmp_path / "snapshots").iterdir()
    assert read_files(snapshot) == linear_model()


def test_two_containers_with_the_same_process_number_download_once(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):  # UR-082, UR-087
    files = large_model(20)
    uri = bucket.put(files)
    around = ["unshare", "-m", "-p", "--fork", "--mount-proc"]
    reports = [report(process) for process in [fetch(tmp_path, proxy, uri, *around) for _ in range(2)]]
    assert [one["pid"] for one in reports] == [1, 1], "each is the first process of its namespace"
    assert sorted(one["store"] > 0 for one in reports) == [False, True]
    assert proxy.object_bytes() == sum(map(len, files.values()))


def test_what_a_container_left_in_staging_is_taken_over_by_another(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):  # UR-079
    files = large_model(20)
    uri = bucket.put(files)
    held = iter(range(10_000))

    def drop_after_the_third(request: Request, forward: Forward):
        if request.is_object_get and next(held) >= 3:
            os.kill(first.pid, signal.SIGKILL)
            return None
        return forward()

    proxy.rule = drop_after_the_third
    first = fetch(tmp_path, proxy, uri, "unshare", "-m", "-p", "--fork", "--kill-child", "--mount-proc")
    first.communicate(timeout=_WAIT_S)
    (left,) = (tmp_path / "staging").iterdir()
    proxy.rule = lambda request, forward: forward()
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
        assert read_files(snapshot.path) == files
    assert not left.exists()
