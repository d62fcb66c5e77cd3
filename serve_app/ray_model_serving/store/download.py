"""Ranged GETs of a whole model into files that already have their size, over all its files at once.

Parts are pinned by If-Match (and VersionId), so that two revisions of an object are never mixed.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ray_model_serving.contract.cache_format import FileEntry, Manifest
from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.store import checksums
from ray_model_serving.store.disk import allocate, check_space, raise_if_full, write_all
from ray_model_serving.store.errors import StoreRefusedError, StoreUnavailableError, raise_together
from ray_model_serving.store.resolve import Translate
from ray_model_serving.store.s3_client import ShortBodyError, call

# S3 advises ranges of 8 to 16 MB:
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-design-patterns.html
PART_BYTES = 8 * 1024**2
_READ_BYTES = 1024**2
_TICK_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Part:
    """One range of one file."""

    entry: FileEntry
    offset: int
    length: int


class Stopped(Exception):  # noqa: N818 - not an error: the fetch ended elsewhere
    """Another part failed or the user interrupted; this one gives up quietly."""


@dataclass
class _Transfer:
    """What the workers share: open files, the bytes on disk so far, and the sign to stop."""

    bucket: str
    files: dict[str, int]
    deadline: float
    stop: threading.Event = field(default_factory=threading.Event)
    done_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, length: int) -> None:
        with self.lock:
            self.done_bytes += length


def parts_of(manifest: Manifest) -> Iterator[Part]:
    """The ranges of all files in order; an empty file has none."""
    for entry in manifest.files:
        for offset in range(0, entry.size_bytes, PART_BYTES):
            yield Part(entry=entry, offset=offset, length=min(PART_BYTES, entry.size_bytes - offset))


def download(
    client: Any,
    bucket: str,
    manifest: Manifest,
    directory: Path,
    *,
    connections: int,
    deadline: float,
    translate: Translate,
    on_bytes: Callable[[int], None],
) -> dict[str, str]:
    """Fetch every file below ``directory`` and return the checksums that came out of the parts, by path.

    ``on_bytes`` gets the bytes on disk so far, in the calling thread. A path that is missing from the result has no CRC
    that combines; :func:`checksums.of_file` reads it instead. All descriptors are closed on every way out.
    """
    check_space(directory, manifest.size_bytes)
    transfer = _Transfer(bucket, {}, deadline)
    try:
        for entry in manifest.files:
            transfer.files[entry.path] = allocate(directory / entry.path, entry.size_bytes)
        return _run(client, manifest, transfer, connections, translate, on_bytes)
    finally:
        for descriptor in transfer.files.values():
            os.close(descriptor)


def _run(
    client: Any,
    manifest: Manifest,
    transfer: _Transfer,
    connections: int,
    translate: Translate,
    on_bytes: Callable[[int], None],
) -> dict[str, str]:
    parts = list(parts_of(manifest))
    pool = ThreadPoolExecutor(max_workers=connections, thread_name_prefix="fetch")
    try:
        futures = [pool.submit(_fetch_part, client, part, transfer, translate) for part in parts]
        _follow(futures, transfer, on_bytes)
    finally:
        # Workers write to our descriptors, so they must be gone before those are closed.
        transfer.stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
    errors = [error for future in futures if (error := _error_of(future))]
    raise_together([error for error in errors if isinstance(error, ModelServingError)], manifest.source)
    if errors:
        raise errors[0]
    on_bytes(transfer.done_bytes)
    return _combine(parts, [future.result() for future in futures])


def _follow(futures: list[Future[int]], transfer: _Transfer, on_bytes: Callable[[int], None]) -> None:
    """Wait for the parts, report progress, and stop at the first failure or the deadline."""
    pending = set(futures)
    while pending:
        finished, pending = wait(pending, timeout=_TICK_S, return_when=FIRST_EXCEPTION)
        on_bytes(transfer.done_bytes)
        if any(future.exception() for future in finished):
            return
        if pending and time.monotonic() > transfer.deadline:
            raise StoreUnavailableError(
                f"{transfer.bucket}: the deadline passed with {transfer.done_bytes} bytes on disk",
                hint="raise the load deadline, or look at the network path to the store",
            )


def _error_of(future: Future[int]) -> Exception | None:
    if future.cancelled():
        return None
    error = future.exception()
    return None if isinstance(error, Stopped) else cast("Exception | None", error)


def _fetch_part(client: Any, part: Part, transfer: _Transfer, translate: Translate) -> int:
    """Fetch one range and return its CRC (0 where the file has none that combines)."""
    entry = part.entry
    try:
        return call(lambda: _read_part(client, part, transfer), transfer.deadline)
    except OSError as error:
        raise_if_full(error, Path(entry.path), entry.size_bytes)
        raise translate(error, f"s3://{transfer.bucket}/{entry.key}") from error
    except Stopped:
        raise
    except Exception as error:
        raise translate(error, f"s3://{transfer.bucket}/{entry.key}") from error


def _read_part(client: Any, part: Part, transfer: _Transfer) -> int:
    if transfer.stop.is_set():
        raise Stopped
    entry, last = part.entry, part.offset + part.length - 1
    version = {"VersionId": entry.version_id} if entry.version_id else {}
    answer: Any = client.get_object(
        Bucket=transfer.bucket, Key=entry.key, IfMatch=entry.etag, Range=f"bytes={part.offset}-{last}", **version
    )
    body = answer["Body"]
    try:
        _check_range(answer, part)
        return _write_body(body, part, transfer)
    finally:
        body.close()


def _check_range(answer: Any, part: Part) -> None:
    expected = f"bytes {part.offset}-{part.offset + part.length - 1}/{part.entry.size_bytes}"
    given = answer.get("ContentRange")
    if given is None and part.length == part.entry.size_bytes:
        return  # the range is the whole object, and a store may answer 200
    if given != expected:
        raise StoreRefusedError(
            f"{part.entry.key}: asked for {expected!r}, the store answered {given!r}",
            hint="the store or a proxy before it does not serve byte ranges; S3 and compatible stores do",
        )


def _write_body(body: Any, part: Part, transfer: _Transfer) -> int:
    crc = checksums.crc_of(part.entry.checksum_type)
    descriptor = transfer.files[part.entry.path]
    value = written = 0
    try:
        while block := body.read(min(_READ_BYTES, part.length - written + 1)):
            if transfer.stop.is_set():
                raise Stopped
            written += len(block)
            if written > part.length:
                break
            if crc:
                value = crc.update(block, value)
            write_all(descriptor, block, part.offset + written - len(block))
            transfer.count(len(block))
        if written != part.length:
            raise ShortBodyError(f"got {written} of {part.length} bytes from offset {part.offset}")
    except BaseException:
        transfer.count(-min(written, part.length))
        raise
    return value


def _combine(parts: list[Part], values: list[int]) -> dict[str, str]:
    by_file: dict[str, list[tuple[int, int]]] = {}
    types: dict[str, str | None] = {}
    for part, value in zip(parts, values, strict=True):
        by_file.setdefault(part.entry.path, []).append((value, part.length))
        types[part.entry.path] = part.entry.checksum_type
    found: dict[str, str] = {}
    for path, pairs in by_file.items():
        crc = checksums.crc_of(types[path])
        whole = checksums.combined(crc, pairs) if crc else None
        if whole is not None:
            found[path] = whole
    return found
