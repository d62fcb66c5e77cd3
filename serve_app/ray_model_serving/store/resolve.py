"""A prefix in S3 to a manifest: what the model consists of right now, pinned by ETag, version and checksum."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ray_model_serving.contract.cache_format import FileEntry, Manifest
from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.uris import S3Uri
from ray_model_serving.store import checksums
from ray_model_serving.store.errors import NOT_S3_HINT, NoObjectsError, StoreRefusedError, raise_together
from ray_model_serving.store.keys import check_paths, is_selected

# A prefix with more objects is not one model; without a bound a wrong prefix would list a whole bucket.
_MAX_OBJECTS = 10_000
_MAX_PAGES = 1_000

Translate = Callable[[Exception, str], ModelServingError]
Ask = Callable[[Callable[[Any], Any]], Any]
"""Runs one request with a client, with retries."""


def resolve_s3(
    ask: Ask,
    uri: S3Uri,
    include: Sequence[str],
    exclude: Sequence[str],
    *,
    connections: int,
    translate: Translate,
) -> Manifest:
    """LIST the prefix and HEAD every selected object. Every object's problem is reported, not the first one's."""
    sizes = _list(ask, uri, translate)
    selected = [
        path for path, size in sizes.items() if not _is_marker(path, size) and is_selected(path, include, exclude)
    ]
    if not selected:
        if not sizes and _is_object(ask, uri):
            raise NoObjectsError(
                f"{uri}: this is an object, not a folder", hint="name the folder that the model's files are in"
            )
        raise NoObjectsError(
            f"{uri}: no objects to fetch; {len(sizes)} objects under the prefix, include {list(include)}, "
            f"exclude {list(exclude)}",
            hint="check the prefix (it ends with a slash and is case-sensitive) and the patterns",
        )
    check_paths(selected)

    def head(path: str) -> FileEntry | ModelServingError:
        key = f"{uri.prefix}{path}"
        try:
            answer = ask(lambda client: client.head_object(Bucket=uri.bucket, Key=key, ChecksumMode="ENABLED"))
            if "ETag" not in answer or "ContentLength" not in answer:
                return StoreRefusedError(f"s3://{uri.bucket}/{key}: the store names no ETag or size", hint=NOT_S3_HINT)
            checksum = checksums.from_head(answer, uri.bucket) or _composite(ask, answer, key, uri.bucket)
        except Exception as error:  # translate() raises again what is not the store's
            return translate(error, f"s3://{uri.bucket}/{key}")
        return _entry(answer, path, key, checksum)

    with ThreadPoolExecutor(max_workers=connections, thread_name_prefix="head") as pool:
        found = list(pool.map(head, sorted(selected)))
    raise_together([item for item in found if isinstance(item, ModelServingError)], str(uri))
    return Manifest(source=str(uri), files=tuple(item for item in found if isinstance(item, FileEntry)))


def _list(ask: Ask, uri: S3Uri, translate: Translate) -> Mapping[str, int]:
    """Relative path to size of everything under the prefix, in bounded pages."""
    sizes: dict[str, int] = {}
    token: dict[str, str] = {}
    for _ in range(_MAX_PAGES):
        try:
            page: Any = ask(lambda client: client.list_objects_v2(Bucket=uri.bucket, Prefix=uri.prefix, **token))  # noqa: B023 - called at once
        except Exception as error:
            raise translate(error, str(uri)) from error
        for item in page.get("Contents", []):
            sizes[str(item["Key"]).removeprefix(uri.prefix)] = int(item["Size"])
        if len(sizes) > _MAX_OBJECTS:
            break
        if not page.get("IsTruncated"):
            return sizes
        if "NextContinuationToken" not in page:
            raise StoreRefusedError(
                f"{uri}: the listing is cut after {len(sizes)} objects and does not say how to go on",
                hint="the store does not serve ListObjectsV2 as S3 does",
            )
        token = {"ContinuationToken": page["NextContinuationToken"]}
    raise StoreRefusedError(
        f"{uri}: more than {_MAX_OBJECTS} objects under the prefix, which is not one model",
        hint="name the model's own prefix",
    )


def _is_object(ask: Ask, uri: S3Uri) -> bool:
    try:
        ask(lambda client: client.head_object(Bucket=uri.bucket, Key=uri.prefix.rstrip("/")))
    except Exception:  # only a better text depends on it
        return False
    return True


def _is_marker(path: str, size: int) -> bool:
    """Consoles create empty objects that end with a slash, to show folders."""
    return size == 0 and (path == "" or path.endswith("/"))


def _composite(ask: Ask, head: Mapping[str, Any], key: str, bucket: str) -> tuple[str, str] | None:
    """``(checksum, type)`` of an object whose checksum is over its parts' checksums; None where they differ in size.

    S3 says a part's size only when it is asked for that part. The first and the last one tell whether all are alike.
    """
    found = checksums.composite_from_head(head)
    if found is None:
        return None
    value, name, count = found

    def size_of(number: int) -> int:
        answer = ask(lambda c: c.head_object(Bucket=bucket, Key=key, IfMatch=head["ETag"], PartNumber=number))
        return int(answer["ContentLength"])

    first_bytes = size_of(1)
    last_bytes = size_of(count) if count > 1 else first_bytes
    if first_bytes <= 0 or first_bytes * (count - 1) + last_bytes != int(head["ContentLength"]):
        return None
    return value, checksums.composite_type(name, first_bytes)


def _entry(head: Mapping[str, Any], path: str, key: str, checksum: tuple[str, str] | None) -> FileEntry:
    version = head.get("VersionId")
    return FileEntry(
        path=path,
        key=key,
        size_bytes=int(head["ContentLength"]),
        etag=str(head["ETag"]),
        version_id=str(version) if version and version != "null" else None,
        checksum=checksum[0] if checksum else None,
        checksum_type=checksum[1] if checksum else None,
    )
