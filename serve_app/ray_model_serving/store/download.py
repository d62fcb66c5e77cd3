"""Ranged GETs of what is missing of a model, over all its files at once, into files that already have their size."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.store import checksums
from ray_model_serving.store.disk import raise_if_full, write_all
from ray_model_serving.store.errors import StoreRefusedError, StoreUnavailableError, raise_together
from ray_model_serving.store.journal import Journal
from ray_model_serving.store.options import BLOCK_BYTES, TransferOptions
from ray_model_serving.store.parts import Extent, Part
from ray_model_serving.store.ranges import RangeBody
from ray_model_serving.store.rate import RateCap
from ray_model_serving.store.retries import ShortBodyError, call
from ray_model_serving.store.syncing import Syncer

_TICK_S = 0.2


class Stopped(Exception):  # noqa: N818 - not an error: the fetch ended elsewhere
    """Another part failed or the user interrupted; this one gives up quietly."""


@dataclass
class _Running:
    """A part that a worker is busy with. ``waits_since`` is set while it waits for the network."""

    part: Part
    done_bytes: int = 0
    crc: int = 0
    body: RangeBody | None = None
    waits_since: float | None = None
    aborted: bool = False


class Download:
    """One download into the allocated files below ``files``; each block is written, then journaled.

    ``translate`` makes the typed error from an error and a key. ``done_bytes`` counts what this download brought.
    """

    def __init__(
        self,
        *,
        open_range: Callable[[Part], RangeBody],
        translate: Callable[[Exception, str], ModelServingError],
        files: Path,
        journal: Journal,
        options: TransferOptions,
        deadline: float,
        rate: RateCap,
    ) -> None:
        self._open_range = open_range
        self._translate = translate
        self._files = files
        self._journal = journal
        self._options = options
        self._deadline = deadline
        self._rate = rate
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._by_worker: dict[int, _Running] = {}
        self.done_bytes = 0

    def run(self, parts: Sequence[Part], source: str, on_bytes: Callable[[int], None]) -> dict[str, list[Extent]]:
        """Fetch the parts and return them as extents by path; ``on_bytes`` hears of progress in this thread.

        Raises one typed error for all that failed. No worker runs any more when this returns, however it does.
        """
        self._syncer = Syncer(self._files)
        pool = ThreadPoolExecutor(max_workers=self._options.connections, thread_name_prefix="fetch")
        try:
            futures = [pool.submit(self._fetch, part) for part in parts]
            self._follow(futures, on_bytes)
        finally:
            # Workers write to files that the caller reads or removes next, so they must be gone before.
            self._stop.set()
            self._abort(lambda _: True)
            pool.shutdown(wait=True, cancel_futures=True)
            self._syncer.stop()
        errors = [error for future in futures if (error := _error_of(future))]
        raise_together([error for error in errors if isinstance(error, ModelServingError)], source)
        if errors:
            raise errors[0]
        self._syncer.raise_if_failed()
        on_bytes(self.done_bytes)
        extents: dict[str, list[Extent]] = {}
        for part, future in zip(parts, futures, strict=True):
            extents.setdefault(part.entry.path, []).append(future.result())
        return extents

    def _follow(self, futures: list[Future[Extent]], on_bytes: Callable[[int], None]) -> None:
        """Wait for the parts, report progress, end what stalls, and stop at the first failure or the deadline."""
        pending = set(futures)
        while pending:
            finished, pending = wait(pending, timeout=_TICK_S, return_when=FIRST_EXCEPTION)
            on_bytes(self.done_bytes)
            if any(future.exception() for future in finished):
                return
            before = time.monotonic() - self._options.stall_s
            self._abort(lambda running: running.waits_since is not None and running.waits_since < before)  # noqa: B023
            if pending and time.monotonic() > self._deadline:
                raise StoreUnavailableError(
                    f"the deadline passed with {self.done_bytes} bytes fetched; the next attempt goes on from there",
                    hint="raise the load deadline, or look at the network path to the store",
                )

    def _abort(self, chosen: Callable[[_Running], bool]) -> None:
        with self._lock:
            for running in self._by_worker.values():
                if running.body and not running.aborted and chosen(running):
                    running.aborted = True
                    running.body.abort()

    # -- in the workers ---------------------------------------------------------------------------------------------

    def _fetch(self, part: Part) -> Extent:
        entry, running = part.entry, _Running(part)
        with self._lock:
            self._by_worker[threading.get_ident()] = running
        try:
            call(lambda: self._read_rest(running), self._deadline)
        except Stopped:
            raise
        except Exception as error:
            self._stop.set()  # now, and not when the caller hears of it: this worker would ask for the next part first
            if isinstance(error, OSError):
                raise_if_full(error, Path(entry.path), entry.size_bytes)
            raise self._translate(error, entry.key) from error
        return Extent(offset=part.offset, length=part.length, crc=running.crc)

    def _read_rest(self, running: _Running) -> None:
        """Read what is left of a part; an attempt after a failure goes on where the last one ended."""
        if self._stop.is_set():
            raise Stopped
        part = running.part
        if running.done_bytes == part.length:
            return  # the last attempt had all bytes when its connection broke
        rest = replace(part, offset=part.offset + running.done_bytes, length=part.length - running.done_bytes)
        body = self._open_range(rest)
        with self._lock:
            running.body, running.aborted = body, False
        descriptor = -1
        try:
            descriptor = os.open(self._files / part.entry.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            while running.done_bytes < part.length:
                self._read_block(running, body, descriptor)
            if body.read(1):
                raise StoreRefusedError(
                    f"{part.entry.key}: more than the {rest.length} bytes that were asked for",
                    hint="the store or a proxy before it does not serve byte ranges; S3 and compatible stores do",
                )
        finally:
            with self._lock:
                running.body = running.waits_since = None
            body.close()
            if descriptor >= 0:
                os.close(descriptor)

    def _read_block(self, running: _Running, body: RangeBody, descriptor: int) -> None:
        part = running.part
        length = min(BLOCK_BYTES, part.length - running.done_bytes)
        if self._stop.wait(self._rate.delay_s(length)) or self._stop.is_set():
            raise Stopped
        running.waits_since = time.monotonic()
        try:
            block = body.read(length)
        except Exception:
            if self._stop.is_set():
                raise Stopped from None
            if running.aborted:
                raise ShortBodyError(_stalled(running, self._options.stall_s)) from None
            raise
        running.waits_since = None
        if len(block) != length:
            if running.aborted:
                raise ShortBodyError(_stalled(running, self._options.stall_s))
            raise ShortBodyError(f"the body ended {part.length - running.done_bytes - len(block)} bytes early")
        write_all(descriptor, block, part.offset + running.done_bytes)
        crc = checksums.journal_crc(part.entry.checksum_type).update(block, running.crc)
        self._journal.add(part.entry.path, Extent(offset=part.offset, length=running.done_bytes + length, crc=crc))
        running.crc, running.done_bytes = crc, running.done_bytes + length
        self._syncer.wrote(part.entry.path)
        with self._lock:
            self.done_bytes += length


def _stalled(running: _Running, stall_s: float) -> str:
    return f"fewer than {BLOCK_BYTES} bytes in {stall_s:g} s at {running.done_bytes} of {running.part.length} bytes"


def _error_of(future: Future[Extent]) -> Exception | None:
    if future.cancelled():
        return None
    error = future.exception()
    return None if isinstance(error, Stopped) else cast("Exception | None", error)
