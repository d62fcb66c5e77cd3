"""Memory peaks are seen although they are gone at the end, and mapped files are told from anonymous memory."""

import mmap
import time
from pathlib import Path

import pytest

from ray_model_serving.host_memory import parse_status, resident
from ray_model_serving.loading.sampler import PeakSampler

MIB = 1024**2


def test_the_thread_sees_a_peak_that_is_over_at_the_end():
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with PeakSampler() as sampler:
        with mmap.mmap(-1, 64 * MIB, flags=private) as block:
            block.write(b"x" * (64 * MIB))
            deadline = time.monotonic() + 10
            while sampler.peak_anon_bytes < 60 * MIB and time.monotonic() < deadline:
                time.sleep(0.003)
        assert block.closed
    assert 60 * MIB <= sampler.peak_anon_bytes < 200 * MIB


def test_a_mapped_file_is_file_backed(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"x" * (32 * MIB))
    with (
        (tmp_path / "file").open("rb") as file,
        PeakSampler() as sampler,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
    ):
        assert sum(mapped[:: mmap.PAGESIZE]) > 0
        sampler._sample()
    assert sampler.peak_file_bytes >= 30 * MIB
    assert sampler.peak_anon_bytes < 16 * MIB


def test_a_status_without_these_lines_gives_zero():
    assert parse_status("Name:\tpython\nVmRSS:\t 12 kB\n").anon_bytes == 0
    assert parse_status("RssAnon:\t 12 kB\nRssFile:\t 3 kB\n").anon_bytes == 12 * 1024


@pytest.mark.parametrize("status", [None, b"RssAnon:\t many kB\n", b"RssAnon:\n", b"Rss\n"])
def test_a_status_that_can_not_be_read_gives_zero_and_one_line_in_the_log(
    status: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    if status:
        (tmp_path / "status").write_bytes(status)
    monkeypatch.setattr("ray_model_serving.host_memory._STATUS", tmp_path / "status")
    with PeakSampler() as sampler:
        pass
    assert (sampler.peak_anon_bytes, sampler.peak_file_bytes, resident().anon_bytes) == (0, 0, 0)
    assert len(caplog.records) == 1, "not one for each sample"
