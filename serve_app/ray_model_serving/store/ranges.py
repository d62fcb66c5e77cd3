"""One ranged GET: the only place that knows how bytes of an object are asked for, so that another client could."""

from typing import Any, Protocol

from ray_model_serving.store.errors import StoreRefusedError
from ray_model_serving.store.parts import Part


class RangeBody(Protocol):
    """The bytes of one range. ``read`` blocks for all that is asked, or until the body ends."""

    def read(self, length: int) -> bytes: ...

    def abort(self) -> None:
        """End a ``read`` that another thread is blocked in."""
        ...

    def close(self) -> None: ...


class _BotoBody:
    def __init__(self, body: Any) -> None:
        self._body = body

    def read(self, length: int) -> bytes:
        return bytes(self._body.read(length))

    def abort(self) -> None:
        # botocore does not pass urllib3's shutdown() on, and nothing else ends a read that waits for the network.
        shutdown = getattr(getattr(self._body, "_raw_stream", None), "shutdown", None)
        try:
            if shutdown:
                shutdown()
        except (OSError, RuntimeError, ValueError):
            return  # it ended by itself meanwhile

    def close(self) -> None:
        self._body.close()


def open_range(client: Any, bucket: str, part: Part) -> RangeBody:
    """Ask for one range, pinned by If-Match (and VersionId), so that two revisions of an object are never mixed.

    Raises botocore's errors, and :class:`StoreRefusedError` for an answer that is not the range.
    """
    entry, last = part.entry, part.offset + part.length - 1
    version = {"VersionId": entry.version_id} if entry.version_id else {}
    answer: Any = client.get_object(
        Bucket=bucket, Key=entry.key, IfMatch=entry.etag, Range=f"bytes={part.offset}-{last}", **version
    )
    body = _BotoBody(answer["Body"])
    problem = _problem(answer, part)
    if problem:
        body.close()
        raise StoreRefusedError(
            f"{entry.key}: {problem}",
            hint="the store or a proxy before it does not serve byte ranges; S3 and compatible stores do",
        )
    return body


def _problem(answer: Any, part: Part) -> str | None:
    expected = f"bytes {part.offset}-{part.offset + part.length - 1}/{part.entry.size_bytes}"
    given = answer.get("ContentRange")
    # Where the range is the whole object, a store may answer 200.
    if given != expected and not (given is None and part.length == part.entry.size_bytes):
        return f"asked for {expected!r}, the store answered {given!r}"
    if answer.get("ContentLength") != part.length:
        return f"asked for {part.length} bytes, the store announces {answer.get('ContentLength')}"
    return None
