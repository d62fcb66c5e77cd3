"""The cap on bytes per second that all downloads of a node keep together."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from emulators import RecordingProxy
from emulators.models import Bucket, large_model
from ray_model_serving.store import ModelStore, rate
from ray_model_serving.store.rate import RateCap, node_rate_cap

_HOLDER = """
import sys
from pathlib import Path
from ray_model_serving.store.rate import node_rate_cap
with node_rate_cap(Path(sys.argv[1]), 1e6):
    print("downloading", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_download(locks: Path) -> Generator[subprocess.Popen[str]]:
    """A process that holds its share until it ends or is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(locks)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "downloading\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(rate.time, "monotonic", lambda: now[0])
    return now


def delays(cap: RateCap, blocks: int = 4) -> list[float]:
    """How long each of some blocks of 500 KB waits."""
    return [round(cap.delay_s(500_000), 6) for _ in range(blocks)]


def test_the_connections_of_one_download_share_the_cap(clock: list[float]):
    assert delays(RateCap(1e6)) == [0, 0.5, 1.0, 1.5]
    assert RateCap(None).delay_s(10**12) == 0


def test_two_downloads_of_a_node_take_half_of_the_cap_each(clock: list[float], tmp_path: Path):
    with node_rate_cap(tmp_path, 1e6) as first, node_rate_cap(tmp_path, 1e6) as second:
        assert delays(second) == [0, 1.0, 2.0, 3.0], "who comes second knows at once"
        assert delays(first) == [0, 0.5, 1.0, 1.5]
        clock[0] += 10
        assert delays(first) == [0, 1.0, 2.0, 3.0], "who was there before hears of it within a second"


def test_the_share_of_a_process_that_is_killed_goes_to_the_others(clock: list[float], tmp_path: Path):
    with another_download(tmp_path) as other, node_rate_cap(tmp_path, 1e6) as cap:
        assert delays(cap) == [0, 1.0, 2.0, 3.0]
        other.kill()
        other.wait()
        clock[0] += 10
        assert delays(cap) == [0, 0.5, 1.0, 1.5], "the kernel frees its lock, so nothing is left to clean up"


def test_more_downloads_than_there_are_files_still_share(clock: list[float], tmp_path: Path):
    with ExitStack() as stack:
        for _ in range(rate._MOST_DOWNLOADS):
            stack.enter_context(node_rate_cap(tmp_path, 1e6))
        one_more = stack.enter_context(node_rate_cap(tmp_path, 1e6))
        assert delays(one_more, 2) == [0, 0.5 * (rate._MOST_DOWNLOADS + 1)]


def test_a_download_without_a_cap_leaves_no_file_and_never_waits(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(bucket.put(large_model(1))).close()
    assert not list((tmp_path / "locks").glob("download-*"))


def test_a_download_that_fails_gives_its_share_back(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), node_rate_cap(tmp_path, 1e6):
        raise ZeroDivisionError
    with node_rate_cap(tmp_path, 1e6) as cap:
        assert delays(cap, 2)[1] == pytest.approx(0.5, abs=0.2)
