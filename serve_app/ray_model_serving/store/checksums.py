"""Checksums of files as S3 stores them, over parts that arrive in any order.

CRC values of parts combine into the value of the whole, so a download is checked without reading the file again;
SHA-256 and MD5 do not combine and are taken over the finished file.
"""

import base64
import hashlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from awscrt import checksums as crt

# What S3 may send for a whole object, best first: https://docs.aws.amazon.com/AmazonS3/latest/API/API_Checksum.html
HEAD_FIELDS: Mapping[str, str] = {
    "ChecksumCRC64NVME": "CRC64NVME",
    "ChecksumCRC32C": "CRC32C",
    "ChecksumCRC32": "CRC32",
    "ChecksumSHA256": "SHA256",
}
FULL_OBJECT = "FULL_OBJECT"
# A checksum of the parts' checksums; what follows is the parts' size in bytes, the last one may be shorter.
_COMPOSITE = "COMPOSITE/"
# The ETag of a single PUT without KMS is the MD5 of the object; the suffix says where the value came from.
MD5_ETAG = "MD5/ETAG"

_READ_BYTES = 4 * 1024**2


@dataclass(frozen=True, kw_only=True)
class Crc:
    """A CRC whose parts combine. ``combine`` is None with an awscrt that is too old for it."""

    width_bytes: int
    update: Callable[[bytes, int], int]
    combine: Callable[[int, int, int], int] | None


def _combiner(name: str) -> Callable[[int, int, int], int] | None:
    return cast("Callable[[int, int, int], int] | None", getattr(crt, name, None))


def crc_of(checksum_type: str | None) -> Crc | None:
    """The CRC behind a checksum type such as ``CRC64NVME/FULL_OBJECT``, or None for all that does not combine."""
    name, _, scope = (checksum_type or "").partition("/")
    if scope != FULL_OBJECT:
        return None
    functions: Mapping[str, tuple[int, Any]] = {
        "CRC64NVME": (8, crt.crc64nvme),
        "CRC32C": (4, crt.crc32c),
        "CRC32": (4, crt.crc32),
    }
    if name not in functions:
        return None
    width, update = functions[name]
    return Crc(width_bytes=width, update=update, combine=_combiner(f"combine_{name.lower()}"))


def journal_crc(checksum_type: str | None) -> Crc:
    """The CRC for ranges of a file: that of the store's checksum, or the fastest one where the store has no CRC."""
    found = crc_of(checksum_type) or crc_of(f"CRC64NVME/{FULL_OBJECT}")
    assert found is not None  # the second one always is
    return found


def encode(crc: Crc, value: int) -> str:
    """A CRC value as S3 writes it: big-endian, base64."""
    return base64.b64encode(value.to_bytes(crc.width_bytes, "big")).decode()


def combined(crc: Crc, parts: Sequence[tuple[int, int]]) -> str | None:
    """The checksum of a file from ``(value, length)`` of its parts in order; None where parts don't combine."""
    if crc.combine is None:
        return None
    total = 0
    for value, length in parts:
        total = crc.combine(total, value, length)
    return encode(crc, total)


def of_file(path: Path, checksum_type: str) -> str:
    """Read a file and compute its checksum of that type, base64. Raises ValueError for an unknown type."""
    name, _, scope = checksum_type.partition("/")
    with path.open("rb") as file:
        if not scope.startswith(_COMPOSITE):
            return base64.b64encode(_raw_digest(file, name, None)).decode()
        part_bytes, size_bytes = int(scope.removeprefix(_COMPOSITE)), path.stat().st_size
        count = math.ceil(size_bytes / part_bytes)
        digests = b"".join(_raw_digest(file, name, part_bytes) for _ in range(count))
    return f"{base64.b64encode(_raw_digest(io.BytesIO(digests), name, None)).decode()}-{count}"


def _raw_digest(file: BinaryIO, name: str, length: int | None) -> bytes:
    """The digest of the next ``length`` bytes, or of all that is left."""
    crc = crc_of(f"{name}/{FULL_OBJECT}")
    digest: Any = None if crc else _digest(name)
    value, left = 0, length
    while block := file.read(_READ_BYTES if left is None else min(_READ_BYTES, left)):
        left = None if left is None else left - len(block)
        if crc:
            value = crc.update(block, value)
        else:
            digest.update(block)
    return value.to_bytes(crc.width_bytes, "big") if crc else cast("bytes", digest.digest())


def _digest(name: str) -> Any:
    if name == "SHA256":
        return hashlib.sha256()
    if name == "MD5":
        return hashlib.md5(usedforsecurity=False)
    raise ValueError(f"checksum {name!r} is not one that this library computes")


def composite_from_head(head: Mapping[str, Any]) -> tuple[str, str, int] | None:
    """``(checksum, algorithm, parts)`` of an object whose checksum is one of its parts' checksums, or None."""
    for field, name in HEAD_FIELDS.items():
        value, _, count = str(head.get(field, "")).rpartition("-")
        if value and count.isdecimal():
            return f"{value}-{count}", name, int(count)
    return None


def composite_type(name: str, part_bytes: int) -> str:
    """The checksum type of an object that was uploaded in parts of one size."""
    return f"{name}/{_COMPOSITE}{part_bytes}"


def from_head(head: Mapping[str, Any], bucket: str) -> tuple[str, str] | None:
    """``(checksum, type)`` of a whole object from a HeadObject answer, or None where the store has none.

    A composite checksum (of a multipart upload, ``...-3``) is passed over: see :func:`composite_from_head`.
    """
    for field, name in HEAD_FIELDS.items():
        value = head.get(field)
        if value and "-" not in value and head.get("ChecksumType", FULL_OBJECT) == FULL_OBJECT:
            return value, f"{name}/{FULL_OBJECT}"
    etag = str(head.get("ETag", "")).strip('"')
    # With KMS or customer keys, and in directory buckets, the ETag is not an MD5 even where it looks like one.
    keyed = str(head.get("ServerSideEncryption", "")).startswith("aws:") or "SSECustomerAlgorithm" in head
    if len(etag) == 32 and not keyed and not bucket.endswith("--x-s3"):
        try:
            return base64.b64encode(bytes.fromhex(etag)).decode(), MD5_ETAG
        except ValueError:
            return None
    return None
