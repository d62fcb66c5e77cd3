"""SIGKILL at random points, many times: each time either a whole snapshot or none, and the next run goes on.

Slow: ``pytest -m slow``.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from emulators import RecordingProxy
from emulators.models import Bucket, large_model, read_files
from emulators.proxy import throttled
from ray_model_serving.store import ModelStore

_KILLS = 100
_SEED = 20261201
_MIB = 24
_WAIT_S = 60.0
# The interpreter and boto3 are loaded once; each fetch then runs in a child that can be killed at any moment.
_FETCHER = """
import os, sys
from pathlib import Path
from ray_model_serving.store import ModelStore
import ray_model_serving.store.fetching
root, endpoint, uri = sys.argv[1:]
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            ModelStore(Path(root), endpoint_url=endpoint, connections=4).ensure(uri).close()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    print(child, flush=True)
    sys.stdin.readline()  # until it was killed; reaped before, its id might be another's
    _, status = os.waitpid(child, 0)
    print(status, flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_kills_at_random_points_lose_nothing_and_show_nothing_partial(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-079
    files = large_model(_MIB)
    uri = bucket.put(files)
    proxy.rule = throttled(30 * 1024**2)
    moments = random.Random(_SEED)
    kills = finished = 0
    command = [sys.executable, "-c", _FETCHER, str(tmp_path), proxy.endpoint_url, uri]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}
    ) as fetcher:
        assert fetcher.stdin
        assert fetcher.stdout
        while kills < _KILLS:
            assert finished < _KILLS, "the kills come too late to say anything"
            fetcher.stdin.write("go\n")
            fetcher.stdin.flush()
            child = int(fetcher.stdout.readline())
            time.sleep(moments.uniform(0.0, 0.7))
            os.kill(child, signal.SIGKILL)
            fetcher.stdin.write("killed\n")
            fetcher.stdin.flush()
            status = int(fetcher.stdout.readline())
            assert status in (0, signal.SIGKILL), "a fetch after a kill ends well, or is killed as well"
            kills += status == signal.SIGKILL
            finished += status == 0
            visible = list((tmp_path / "snapshots").iterdir()) if (tmp_path / "snapshots").exists() else []
            assert len(list((tmp_path / "staging").iterdir()) if (tmp_path / "staging").exists() else []) <= 2
            for snapshot in visible:
                assert read_files(snapshot) == files
                with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri) as used:
                    assert used.report.bytes_store == 0
                # From the start again, by a rename, as eviction does it.
                snapshot.rename(tmp_path / "staging" / f"{snapshot.name}.evicted")
        fetcher.stdin.close()
        assert fetcher.wait(_WAIT_S) == 0
    proxy.rule = lambda request, forward: forward()
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
        assert read_files(snapshot.path) == files
    assert not list((tmp_path / "staging").iterdir())
    # Without going on where a killed run ended, each kill would cost what it had fetched.
    fetched = proxy.object_bytes()
    whole = (finished + 1) * sum(map(len, files.values()))
    assert fetched < whole + _KILLS * 6 * 1024**2, f"{fetched} bytes for {finished + 1} snapshots and {kills} kills"
