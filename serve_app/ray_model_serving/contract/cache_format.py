"""The node cache directory: a published format, since two versions of the library may share a node.

``<root>/snapshots/<snapshot-id>/`` is immutable and holds the model files and ``snapshot.json``. The id hashes the
canonical manifest: sorted relative paths with size and checksum (ETag and version where there is no checksum), not the
bucket, so that a copied bucket hits. ``<root>/staging/`` holds work in progress, ``<root>/locks/`` one lock a snapshot.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from ray_model_serving.contract.errors import ModelServingError

FORMAT_VERSION = 1
RECORD_NAME = "snapshot.json"
DIRECTORY_MODE = 0o775
FILE_MODE = 0o444
_ID_LENGTH = 32


class UnreadableRecordError(ModelServingError):
    """A ``snapshot.json`` that this version of the library can't read."""

    kind = "unreadable_record"


class NewerRecordError(UnreadableRecordError):
    """A ``snapshot.json`` of a later format, see :meth:`Manifest.from_json`."""

    kind = "newer_record"


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a model. ``path`` is relative to the model; ``checksum`` is base64 as the store sends it."""

    path: str
    key: str
    size_bytes: int
    etag: str
    version_id: str | None = None
    checksum: str | None = None
    checksum_type: str | None = None
    """Algorithm and scope, such as ``CRC64NVME/FULL_OBJECT``."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a snapshot consists of, as resolved from the store; ``files`` are sorted by path.

    A converted copy names the snapshot that it was made from and its type. Both make its id: a replica looks for the
    copy before anybody has made it.
    """

    source: str
    files: tuple[FileEntry, ...]
    parent: str | None = None
    dtype: str | None = None

    @property
    def snapshot_id(self) -> str:
        return converted_id(self.parent, self.dtype) if self.parent and self.dtype else snapshot_id(self.files)

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files)

    def to_json(self) -> str:
        """The text of ``snapshot.json``."""
        document: dict[str, object] = {
            "format_version": FORMAT_VERSION,
            "snapshot_id": self.snapshot_id,
            "source": self.source,
            "files": [asdict(entry) for entry in self.files],
        }
        if self.parent:
            document |= {"parent": self.parent, "dtype": self.dtype}
        return json.dumps(document, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Read ``snapshot.json``. Raises :class:`UnreadableRecordError` for any other text or format version.

        Fields that this version does not know are passed over. A later format keeps the meaning of the id and the
        files under their paths, so that whoever knows the manifest from the store can use its snapshots all the same.
        """
        try:
            document = cast("Mapping[str, Any]", json.loads(text))
            version = document["format_version"]
            if version != FORMAT_VERSION:
                newer = type(version) is int and version > FORMAT_VERSION
                raise (NewerRecordError if newer else UnreadableRecordError)(
                    f"snapshot record has format version {version}, this library reads {FORMAT_VERSION}"
                )
            manifest = cls(
                source=_text(document["source"]),
                files=tuple(_entry(entry) for entry in document["files"]),
                parent=_text_or_none(document.get("parent")),
                dtype=_text_or_none(document.get("dtype")),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UnreadableRecordError(f"snapshot record is not readable: {error!r}") from error
        if document.get("snapshot_id") != manifest.snapshot_id:
            raise UnreadableRecordError("snapshot record names another snapshot than its files make")
        return manifest


def _entry(given: Mapping[str, Any]) -> FileEntry:
    known = {field.name: given[field.name] for field in fields(FileEntry) if field.name in given}
    size_bytes = known.pop("size_bytes")
    if type(size_bytes) is not int or size_bytes < 0:
        raise TypeError(f"size_bytes {size_bytes!r} is no size")
    path, key, etag = (_text(known.pop(name)) for name in ("path", "key", "etag"))
    rest = {name: _text_or_none(value) for name, value in known.items()}
    return FileEntry(path=path, key=key, size_bytes=size_bytes, etag=etag, **rest)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def snapshot_id(files: Iterable[FileEntry]) -> str:
    """The identity of a set of files: the same content has the same id in every bucket."""
    lines = [
        [entry.path, entry.size_bytes, entry.checksum_type, entry.checksum]
        if entry.checksum
        else [entry.path, entry.size_bytes, entry.etag, entry.version_id]
        for entry in sorted(files, key=lambda entry: entry.path)
    ]
    canonical = json.dumps(lines, separators=(",", ":"), ensure_ascii=True)
    return _short_hash(canonical)


def converted_id(parent: str, dtype: str) -> str:
    """The identity of a converted copy: one for each parent and type."""
    return _short_hash(json.dumps(["converted", parent, dtype]))


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_LENGTH]


@dataclass(frozen=True)
class CacheLayout:
    """Where things lie under one cache root."""

    root: Path

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def staging(self) -> Path:
        return self.root / "staging"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def compiled(self) -> Path:
        """Compile caches, one directory a key: mutable, inside the byte budget, the first to be evicted."""
        return self.root / "compiled"

    def snapshot(self, identity: str) -> Path:
        return self.snapshots / identity

    def record(self, identity: str) -> Path:
        return self.snapshot(identity) / RECORD_NAME

    def lock(self, identity: str) -> Path:
        return self.locks / identity
