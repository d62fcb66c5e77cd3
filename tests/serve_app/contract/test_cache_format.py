"""The published cache format: two versions of the library on one node agree on it."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_model_serving.contract.cache_format import (
    FileEntry,
    Manifest,
    NewerRecordError,
    UnreadableRecordError,
    converted_id,
    snapshot_id,
)

_ENTRIES = st.builds(
    FileEntry,
    path=st.text(min_size=1, max_size=10),
    key=st.text(max_size=10),
    size_bytes=st.integers(0, 2**60),
    etag=st.text(max_size=5),
    version_id=st.none() | st.text(max_size=5),
    checksum=st.none() | st.text(min_size=1, max_size=5),
    checksum_type=st.none() | st.just("CRC64NVME/FULL_OBJECT"),
)
_MANIFESTS = st.builds(
    Manifest, source=st.text(max_size=10), files=st.lists(_ENTRIES, max_size=4, unique_by=lambda e: e.path).map(tuple)
)
ENTRY = FileEntry(
    path="model.safetensors",
    key="minilm/model.safetensors",
    size_bytes=90868376,
    etag='"7b8c"',
    checksum="aCTj8I4R7Nw=",
    checksum_type="CRC64NVME/FULL_OBJECT",
)


@given(_MANIFESTS)
def test_a_record_is_read_back_as_it_was_written(manifest: Manifest):
    assert Manifest.from_json(manifest.to_json()) == manifest


@given(_MANIFESTS, st.randoms(use_true_random=False))
def test_the_order_of_files_does_not_change_the_id(manifest: Manifest, random):
    shuffled = list(manifest.files)
    random.shuffle(shuffled)
    assert snapshot_id(shuffled) == manifest.snapshot_id


def test_the_id_of_a_known_model_never_changes():
    canonical = '[["model.safetensors",90868376,"CRC64NVME/FULL_OBJECT","aCTj8I4R7Nw="]]'
    assert snapshot_id([ENTRY]) == hashlib.sha256(canonical.encode()).hexdigest()[:32]
    assert snapshot_id([ENTRY]) == "367c4bffae7d602248eaea8300f7ca84", "a new id would empty every cache in the field"


def test_a_converted_copy_is_known_by_parent_and_type_before_it_is_made():
    copy = Manifest(source="s3://b/m/", files=(ENTRY,), parent="p" * 32, dtype="bfloat16")
    assert copy.snapshot_id == converted_id("p" * 32, "bfloat16")
    assert len({copy.snapshot_id, converted_id("p" * 32, "float16"), snapshot_id([ENTRY])}) == 3
    assert Manifest.from_json(copy.to_json()) == copy
    assert '"parent"' not in Manifest(source="s3://b/m/", files=(ENTRY,)).to_json()


def changed(**changes: object) -> FileEntry:
    return FileEntry(**{**ENTRY.__dict__, **changes})  # pyright: ignore[reportArgumentType]


def test_content_makes_the_id_and_its_place_does_not():
    same = changed(key="copy/model.safetensors", etag='"other"', version_id="v7")
    assert snapshot_id([same]) == snapshot_id([ENTRY])
    for other in (changed(size_bytes=1), changed(checksum="x"), changed(path="b.safetensors")):
        assert snapshot_id([other]) != snapshot_id([ENTRY])


def test_without_a_checksum_etag_and_version_make_the_id():
    bare = changed(checksum=None, checksum_type=None)
    assert snapshot_id([bare]) != snapshot_id([changed(checksum=None, checksum_type=None, etag='"other"')])
    assert snapshot_id([bare]) != snapshot_id([changed(checksum=None, checksum_type=None, version_id="v7")])


@given(st.text(max_size=50))
def test_any_other_text_is_unreadable_and_never_a_crash(text: str):
    with pytest.raises(UnreadableRecordError):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    "change",
    [{"format_version": 2}, {"snapshot_id": "0" * 32}, {"files": [{"path": "a"}]}, {"files": 3}],
)
def test_a_record_of_another_version_or_content_is_unreadable(change: dict[str, object]):
    document = {**json.loads(Manifest(source="s3://b/m/", files=(ENTRY,)).to_json()), **change}
    with pytest.raises(UnreadableRecordError):
        Manifest.from_json(json.dumps(document))


def test_fields_of_a_later_writer_are_passed_over():
    document = json.loads(Manifest(source="s3://b/m/", files=(ENTRY,)).to_json())
    document["added"] = 1
    document["files"][0]["added"] = {"deep": [1]}
    assert Manifest.from_json(json.dumps(document)).files == (ENTRY,)


def test_a_record_of_a_later_format_is_told_from_a_broken_one():
    with pytest.raises(NewerRecordError):
        Manifest.from_json('{"format_version": 2}')
    for version in ("0", '"2"', "true", "null"):
        with pytest.raises(UnreadableRecordError) as raised:
            Manifest.from_json(f'{{"format_version": {version}}}')
        assert not isinstance(raised.value, NewerRecordError)


@pytest.mark.parametrize(
    "change",
    [{"path": 3}, {"path": None}, {"size_bytes": "9"}, {"size_bytes": 1.5}, {"size_bytes": -1}, {"checksum": ["x"]}],
)
def test_values_of_another_type_are_unreadable(change: dict[str, object]):
    document = json.loads(Manifest(source="s3://b/m/", files=(ENTRY, ENTRY)).to_json())
    document["files"][0] |= change
    with pytest.raises(UnreadableRecordError):
        Manifest.from_json(json.dumps(document))


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"a":' * 200_000, '{"format_version": 1, "files": "ab", "source": ""}']
)
def test_a_record_that_no_parser_can_take_is_unreadable(text: str):
    with pytest.raises(UnreadableRecordError):
        Manifest.from_json(text)
