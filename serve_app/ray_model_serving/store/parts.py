"""What is left to fetch of a model, as ranges, and what ranges that are on disk add up to. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ray_model_serving.contract.cache_format import FileEntry
from ray_model_serving.store import checksums


@dataclass(frozen=True, kw_only=True)
class Part:
    """One range of one file."""

    entry: FileEntry
    offset: int
    length: int


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Bytes of a file that are on disk; ``crc`` is their value under :func:`checksums.journal_crc` of the file."""

    offset: int
    length: int
    crc: int


Extents = Mapping[str, Sequence[Extent]]
"""By path; sorted by offset and without overlaps, see :func:`disjoint`."""


def disjoint(extents: Iterable[Extent], size_bytes: int) -> list[Extent]:
    """Sorted, within the file, and of several that overlap only the first."""
    kept: list[Extent] = []
    end = 0
    for extent in sorted(extents, key=lambda extent: (extent.offset, -extent.length)):
        if extent.length > 0 and end <= extent.offset and extent.offset + extent.length <= size_bytes:
            kept.append(extent)
            end = extent.offset + extent.length
    return kept


def missing_parts(files: Iterable[FileEntry], present: Extents, part_bytes: int) -> Iterator[Part]:
    """The ranges that ``present`` lacks, in order, none longer than ``part_bytes``; an empty file has none."""
    for entry in files:
        position = 0
        for extent in present.get(entry.path, ()):
            yield from _split(entry, position, extent.offset, part_bytes)
            position = extent.offset + extent.length
        yield from _split(entry, position, entry.size_bytes, part_bytes)


def _split(entry: FileEntry, start: int, end: int, part_bytes: int) -> Iterator[Part]:
    for offset in range(start, end, part_bytes):
        yield Part(entry=entry, offset=offset, length=min(part_bytes, end - offset))


def combined_checksums(files: Iterable[FileEntry], present: Extents) -> dict[str, str]:
    """By path, the checksum of each file that is there as a whole and whose type combines; others have to be read."""
    found: dict[str, str] = {}
    for entry in files:
        crc = checksums.crc_of(entry.checksum_type)
        extents = present.get(entry.path, ())
        if crc is None or not extents or sum(extent.length for extent in extents) != entry.size_bytes:
            continue
        whole = checksums.combined(crc, [(extent.crc, extent.length) for extent in extents])
        if whole is not None:
            found[entry.path] = whole
    return found


def total_bytes(present: Extents) -> int:
    """Bytes of all extents."""
    return sum(extent.length for extents in present.values() for extent in extents)


def merged(first: Extents, second: Extents) -> dict[str, list[Extent]]:
    """Two sets of extents that do not overlap as one."""
    return {
        path: sorted([*first.get(path, ()), *second.get(path, ())], key=lambda extent: extent.offset)
        for path in {**first, **second}
    }
