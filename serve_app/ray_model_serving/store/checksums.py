"""Checksums of files as S3 stores them, over parts that arrive in any order.

CRC values of parts combine into the value of the whole, so a download is checked without reading the file again;
SHA-256 and MD5 do not combine and are taken over the finished file.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from awscrt import checksums as crt

# What S3 may send for a whole object, best first: https://docs.aws.amazon.com/AmazonS3/latest/API/API_Checksum.html
HEAD_FIELDS: Mapping[str, str] = {
    "ChecksumCRC64NVME": "CRC64NVME",
    "ChecksumCRC32C": "CRC32C",
    "ChecksumCRC32": "CRC32",
    "ChecksumSHA256": "SHA256",
}
FULL_OBJECT = "FULL_OBJECT"
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
    """The CRC behind a checksum type such as ``CRC64NVME/FULL_OBJECT``, or None for digests and for no checksum."""
    name = (checksum_type or "").partition("/")[0]
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
    found = crc_of(checksum_type) or crc_of("CRC64NVME")
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
    crc = crc_of(checksum_type)
    digest = None if crc else _digest(checksum_type)
    value = 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            if crc:
                value = crc.update(block, value)
            elif digest:
                digest.update(block)
    if crc:
        return encode(crc, value)
    assert digest is not None  # _digest raised otherwise
    return base64.b64encode(digest.digest()).decode()


def _digest(checksum_type: str) -> Any:
    name = checksum_type.partition("/")[0]
    if name == "SHA256":
        return hashlib.sha256()
    if name == "MD5":
        return hashlib.md5(usedforsecurity=False)
    raise ValueError(f"checksum type {checksum_type!r} is not one that this library computes")


def from_head(head: Mapping[str, Any], bucket: str) -> tuple[str, str] | None:
    """``(checksum, type)`` of a whole object from a HeadObject answer, or None where the store has none.

    A composite checksum (of a multipart upload, ``...-3``) says nothing about the whole and is passed over.
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
