"""Which ranges are fetched, and what ranges add up to: every byte exactly once, whatever an earlier run left."""

import base64
import itertools

import pytest
from awscrt import checksums as crt
from hypothesis import given
from hypothesis import strategies as st

from ray_model_serving.contract.cache_format import FileEntry
from ray_model_serving.store.options import part_bytes_for
from ray_model_serving.store.parts import Extent, combined_checksums, disjoint, merged, missing_parts, total_bytes

_SIZES = st.integers(0, 200)
_CLAIMS = st.lists(st.tuples(st.integers(0, 220), st.integers(0, 90)), max_size=8)


def entry_of(size_bytes: int, checksum_type: str | None = "CRC32/FULL_OBJECT") -> FileEntry:
    return FileEntry(path="f", key="m/f", size_bytes=size_bytes, etag='"e"', checksum="x", checksum_type=checksum_type)


def extents_of(claims: list[tuple[int, int]]) -> list[Extent]:
    return [Extent(offset=offset, length=length, crc=0) for offset, length in claims]


@given(_SIZES, _CLAIMS, st.integers(1, 64))
def test_what_is_present_and_what_is_missing_cover_each_byte_exactly_once(
    size: int, claims: list[tuple[int, int]], part_bytes: int
):
    entry = entry_of(size)
    present = disjoint(extents_of(claims), size)
    parts = list(missing_parts([entry], {"f": present}, part_bytes))
    covered = [byte for one in (*present, *parts) for byte in range(one.offset, one.offset + one.length)]
    assert sorted(covered) == list(range(size)), "a byte twice is waste, a byte never is a hole of zeros"
    assert all(0 < part.length <= part_bytes for part in parts)


@given(_SIZES, _CLAIMS)
def test_claims_that_overlap_or_reach_past_the_end_are_never_believed_together(
    size: int, claims: list[tuple[int, int]]
):
    kept = disjoint(extents_of(claims), size)
    assert all(extent.length > 0 and extent.offset + extent.length <= size for extent in kept)
    assert all(a.offset + a.length <= b.offset for a, b in itertools.pairwise(kept))


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6), st.booleans())
def test_the_checksum_of_the_whole_comes_out_of_any_cut_into_ranges(content: bytes, cuts: list[int], reverse: bool):
    ends = sorted({*(cut for cut in cuts if 0 < cut < len(content)), len(content)} - {0})
    extents = [
        Extent(offset=start, length=end - start, crc=crt.crc32(content[start:end]))
        for start, end in zip([0, *ends], ends, strict=False)
    ]
    half = len(extents) // 2
    first, second = {"f": extents[:half]}, {"f": extents[half:]}
    together = merged(second, first) if reverse else merged(first, second)
    assert total_bytes(together) == len(content)
    expected = base64.b64encode(crt.crc32(content).to_bytes(4, "big")).decode()
    assert combined_checksums([entry_of(len(content))], together) == ({"f": expected} if content else {})


def test_a_file_with_a_hole_or_without_a_crc_has_no_combined_checksum():
    hole = {"f": [Extent(offset=0, length=4, crc=1), Extent(offset=6, length=4, crc=1)]}
    assert combined_checksums([entry_of(10)], hole) == {}
    whole = {"f": [Extent(offset=0, length=10, crc=1)]}
    assert combined_checksums([entry_of(10, "SHA256/FULL_OBJECT")], whole) == {}


@pytest.mark.parametrize(("mib", "expected"), [(1, 4), (127, 4), (128, 8), (4095, 8), (4096, 16), (100_000, 16)])
def test_ranges_are_long_where_each_connection_has_several_and_short_where_it_would_have_none(mib: int, expected: int):
    assert part_bytes_for(mib * 1024**2, connections=16) == expected * 1024**2
