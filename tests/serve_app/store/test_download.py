"""What a download holds in memory, and how it ends: no thread is left, whatever happened."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from awscrt import checksums as crt

from ray_model_serving.contract.cache_format import FileEntry
from ray_model_serving.store.disk import allocate
from ray_model_serving.store.download import Download
from ray_model_serving.store.errors import StoreRefusedError, StoreUnavailableError
from ray_model_serving.store.journal import Journal, read_claims
from ray_model_serving.store.options import BLOCK_BYTES, TransferOptions
from ray_model_serving.store.parts import Part, missing_parts
from ray_model_serving.store.rate import RateCap
from ray_model_serving.store.retries import ShortBodyError

_MIB = 1024**2
_CONTENT = os.urandom(5 * _MIB + 3)
_ENTRY = FileEntry(path="f", key="m/f", size_bytes=len(_CONTENT), etag="e", checksum_type="CRC32/FULL_OBJECT")


class Body:
    """A range in memory. Records what is asked of it, over all bodies."""

    largest_read = 0
    open_now = 0
    most_open = 0
    lock = threading.Lock()

    def __init__(self, part: Part) -> None:
        self._left = memoryview(_CONTENT)[part.offset : part.offset + part.length]
        with Body.lock:
            Body.open_now += 1
            Body.most_open = max(Body.most_open, Body.open_now)

    def read(self, length: int) -> bytes:
        Body.largest_read = max(Body.largest_read, length)
        block, self._left = bytes(self._left[:length]), self._left[length:]
        return block

    def abort(self) -> None:
        pass

    def close(self) -> None:
        with Body.lock:
            Body.open_now -= 1


def run(directory: Path, open_range: Callable[[Part], Body], connections: int = 3) -> Download:
    os.close(allocate(directory / "f", len(_CONTENT)))
    with Journal(directory, "i", {}) as journal:
        download = Download(
            open_range=open_range,
            translate=lambda error, key: StoreUnavailableError(f"{key}: {error}"),
            files=directory,
            journal=journal,
            options=TransferOptions(connections=connections, stall_s=30),
            deadline=float("inf"),
            rate=RateCap(None),
        )
        download.run(list(missing_parts([_ENTRY], {}, _MIB)), "s3://b/m/", lambda _: None)
        return download


def test_memory_in_flight_is_one_block_for_each_connection(tmp_path: Path):
    Body.largest_read = Body.most_open = 0
    assert run(tmp_path, Body).done_bytes == len(_CONTENT)
    assert (tmp_path / "f").read_bytes() == _CONTENT
    assert Body.largest_read <= BLOCK_BYTES
    assert Body.most_open <= 3
    assert Body.open_now == 0, "every body is closed, so that its connection serves the next range"


def test_the_journal_holds_what_was_written_and_nothing_else(tmp_path: Path):
    run(tmp_path, Body)
    claims = read_claims(tmp_path, "i", {"f": len(_CONTENT)})
    assert claims
    assert sum(extent.length for extent in claims["f"]) == len(_CONTENT)
    for extent in claims["f"]:
        assert extent.crc == crt.crc32(_CONTENT[extent.offset : extent.offset + extent.length])


def test_a_body_that_is_longer_than_asked_is_not_taken(tmp_path: Path):
    class Longer(Body):
        def __init__(self, part: Part) -> None:
            super().__init__(part)
            self._left = memoryview(bytes(self._left) + b"more")

    with pytest.raises(StoreUnavailableError, match="more than the"):
        run(tmp_path, Longer, connections=1)


def test_a_connection_that_breaks_after_the_last_byte_costs_no_second_request(tmp_path: Path):
    asked: list[int] = []

    class BrokenAtTheEnd(Body):
        def __init__(self, part: Part) -> None:
            asked.append(part.offset)
            super().__init__(part)

        def read(self, length: int) -> bytes:
            if not self._left:
                raise ConnectionResetError("reset by peer")
            return super().read(length)

    run(tmp_path, BrokenAtTheEnd, connections=1)
    assert asked == [offset * _MIB for offset in range(6)]
    assert (tmp_path / "f").read_bytes() == _CONTENT


@pytest.mark.parametrize("error", [StoreRefusedError("no"), ShortBodyError("cut"), RuntimeError("a bug")])
def test_no_thread_outlives_a_download_that_fails(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ray_model_serving.store.retries.ATTEMPTS", 2)

    def fail(part: Part) -> Body:
        raise error

    with pytest.raises(StoreUnavailableError):
        run(tmp_path, fail)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("fetch")]
