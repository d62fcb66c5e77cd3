"""A model from the store to the node's cache, and what is asked of the store for it."""

import base64
import hashlib
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from awscrt import checksums as crt

from emulators import Answer, RecordingProxy
from emulators.models import Bucket, large_model, linear_model, read_files
from emulators.proxy import Forward, Request
from ray_model_serving.contract.cache_format import Manifest
from ray_model_serving.store import FetchProgress, ModelStore
from ray_model_serving.store.errors import DigestMismatchError, NoObjectsError, SnapshotMismatchError


def with_checksum(field: str, value: str, kind: str = "FULL_OBJECT"):
    """A rule: HEAD of the weights says this checksum and no other."""

    def rule(request: Request, forward: Forward) -> Answer:
        answer = forward()
        if request.method != "HEAD" or not request.path.endswith(".safetensors"):
            return answer
        headers = {name: text for name, text in answer.headers.items() if not name.startswith("x-amz-checksum")}
        headers |= {f"x-amz-checksum-{field}": value, "x-amz-checksum-type": kind} if field else {}
        return replace(answer, headers=headers)

    return rule


def base64_of(value: int, width: int) -> str:
    return base64.b64encode(value.to_bytes(width, "big")).decode()


def full_object_checksums(content: bytes) -> dict[str, str]:
    return {
        "crc64nvme": base64_of(crt.crc64nvme(content), 8),
        "crc32c": base64_of(crt.crc32c(content), 4),
        "crc32": base64_of(crt.crc32(content), 4),
        "sha256": base64.b64encode(hashlib.sha256(content).digest()).decode(),
    }


def test_every_file_arrives_whole_and_is_read_only(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    files = {**linear_model(), **large_model(), "empty.txt": b"", "weights.bin": b"pickle"}
    uri = bucket.put(files)
    with ModelStore(tmp_path / "cache", endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
        del files["weights.bin"]
        assert read_files(snapshot.path) == files, "pickled weights are excluded by default, everything else is there"
        assert snapshot.report.bytes_store == sum(map(len, files.values())) == proxy.object_bytes()
        modes = {stat.S_IMODE(path.stat().st_mode) for path in snapshot.path.rglob("*") if path.is_file()}
        assert modes == {0o444}, "nothing writes to a snapshot"
        record = Manifest.from_json((snapshot.path / "snapshot.json").read_text())
        assert record == snapshot.manifest
        assert record.snapshot_id == snapshot.path.name
    assert not list((tmp_path / "cache" / "staging").iterdir())


def test_every_range_is_pinned_to_the_etag_that_was_resolved(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put(large_model(20))
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
        etags = {entry.key: entry.etag for entry in snapshot.manifest.files}
    gets = proxy.object_gets()
    assert len(gets) == 7, "20 MiB and its header are six parts of 4 MiB, and config.json is one"
    assert all(get.headers["if-match"] == etags[get.path.split("/", 2)[2]] for get in gets)


def test_a_version_is_named_in_every_range_where_the_bucket_keeps_versions(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    bucket.s3.client().put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"})
    uri = bucket.put(linear_model())
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
        versions = {entry.version_id for entry in snapshot.manifest.files}
    assert None not in versions
    assert {get.query.split("versionId=")[1].partition("&")[0] for get in proxy.object_gets()} == versions


def test_a_second_fetch_reads_no_object(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put(linear_model())
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url)
    store.ensure(uri).close()
    before = len(proxy.object_gets())
    with store.ensure(uri) as snapshot:
        assert len(proxy.object_gets()) == before
        assert snapshot.report.bytes_store == 0
        assert snapshot.report.bytes_node == snapshot.manifest.size_bytes


def test_a_new_revision_is_a_new_snapshot_and_the_old_one_stays(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    # UR-081
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url)
    with store.ensure(bucket.put(linear_model())) as old:
        with store.ensure(bucket.put({**linear_model(), "config.json": b'{"hidden": 4}'})) as new:
            assert new.snapshot_id != old.snapshot_id
        assert read_files(old.path) == linear_model()


def test_a_copied_bucket_hits(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url)
    with store.ensure(bucket.put(linear_model(), "first/")) as first:
        copied = {**linear_model(), "snapshot.json": (first.path / "snapshot.json").read_bytes()}
    with store.ensure(bucket.put(copied, "second/")) as second:
        assert second.snapshot_id == first.snapshot_id, (
            "content, not the place, makes the id; its own record is no file"
        )
        assert second.report.bytes_store == 0


def test_include_and_exclude_choose_the_files(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put({**linear_model(), "onnx/model.safetensors": b"x"})
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url)
    with store.ensure(uri, include=["*.safetensors", "*.json"], exclude=["onnx/*"]) as snapshot:
        assert sorted(read_files(snapshot.path)) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("field", ["crc64nvme", "crc32c", "crc32", "sha256"])
def test_each_full_object_checksum_is_checked(field: str, proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    files = large_model(9)  # two parts: a value that only covers the first would show
    uri = bucket.put(files)
    values = full_object_checksums(files["model.safetensors"])
    proxy.rule = with_checksum(field, values[field])
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url)
    with store.ensure(uri) as snapshot:
        assert snapshot.report.files_by_check[f"{field.upper()}/FULL_OBJECT"] >= 1

    wrong = full_object_checksums(files["model.safetensors"] + b"x")
    proxy.rule = with_checksum(field, wrong[field])
    with pytest.raises(DigestMismatchError) as raised:
        store.ensure(uri)
    assert "model.safetensors" in raised.value.message
    assert wrong[field] in raised.value.message
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == [snapshot.snapshot_id]
    assert not list((tmp_path / "staging").iterdir()), "what failed its check is not left behind"


def test_without_a_checksum_the_etag_is_checked_where_it_is_an_md5(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    uri = bucket.put(linear_model())
    proxy.rule = with_checksum("", "")
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
        assert snapshot.report.files_by_check["MD5/ETAG"] == 1


def in_parts(content: bytes, sizes: list[int], checksum: str):
    """A rule: HEAD of the weights is that of an upload in parts of these sizes."""

    def rule(request: Request, forward: Forward) -> Answer:
        got = forward()
        if request.method != "HEAD" or not request.path.endswith(".safetensors"):
            return got
        headers = {name: text for name, text in got.headers.items() if not name.startswith("x-amz-checksum")}
        headers |= {"x-amz-checksum-crc32": checksum, "x-amz-checksum-type": "COMPOSITE"}
        number = re.search(r"partNumber=(\d+)", request.query)
        headers["x-head-length"] = str(sizes[int(number[1]) - 1] if number else len(content))
        return replace(got, status=206 if number else 200, headers=headers)

    return rule


def upload_in_parts(bucket: Bucket, content: bytes, sizes: list[int]) -> str:
    """The weights as a multipart upload; gives the model's URI."""
    client, place = bucket.s3.client(), {"Bucket": bucket.name, "Key": "m/model.safetensors"}
    place["UploadId"] = client.create_multipart_upload(**place)["UploadId"]
    parts, position = list[dict[str, object]](), 0
    for number, size in enumerate(sizes, start=1):
        part = client.upload_part(**place, PartNumber=number, Body=content[position : position + size])
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
        position += size
    client.complete_multipart_upload(**place, MultipartUpload={"Parts": parts})
    return f"s3://{bucket.name}/m/"


def composite_of(content: bytes, sizes: list[int]) -> str:
    position, values = 0, b""
    for size in sizes:
        values += crt.crc32(content[position : position + size]).to_bytes(4, "big")
        position += size
    return f"{base64_of(crt.crc32(values), 4)}-{len(sizes)}"


def test_the_checksum_of_an_upload_in_parts_is_checked_part_by_part(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    content = large_model(12)["model.safetensors"]
    sizes = [5 * 1024**2, 5 * 1024**2, len(content) - 10 * 1024**2]
    store, uri = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url), upload_in_parts(bucket, content, sizes)
    proxy.rule = in_parts(content, sizes, composite_of(content[::-1], sizes))
    with pytest.raises(DigestMismatchError, match="COMPOSITE/5242880"):
        store.ensure(uri)
    proxy.rule = in_parts(content, sizes, composite_of(content, sizes))
    with store.ensure(uri) as snapshot:
        assert snapshot.report.files_by_check == {"CRC32/COMPOSITE/5242880": 1}
        assert read_files(snapshot.path) == {"model.safetensors": content}


def test_parts_of_different_sizes_are_not_taken_for_equal_ones(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    content = large_model(12)["model.safetensors"]
    sizes = [5 * 1024**2, 6 * 1024**2, len(content) - 11 * 1024**2]
    uri = upload_in_parts(bucket, content, sizes)
    proxy.rule = in_parts(content, sizes, composite_of(content, sizes))
    (entry,) = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).resolve(uri).files
    assert entry.checksum is None


def test_with_neither_the_report_says_that_only_size_and_etag_were_checked(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    content = linear_model()["model.safetensors"]
    uri = upload_in_parts(bucket, content, [len(content)])
    proxy.rule = with_checksum("", "")
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(uri) as snapshot:
        assert snapshot.report.files_by_check["size and ETag"] == 1


def test_the_pin_refuses_other_content_with_both_ids(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put(linear_model())
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url)
    actual, pin = store.resolve(uri).snapshot_id, "0" * 32
    with pytest.raises(SnapshotMismatchError) as raised:
        store.ensure(uri, snapshot_id=pin)
    assert actual in raised.value.message
    assert pin in raised.value.message
    assert not proxy.object_gets()


def test_a_pinned_snapshot_that_is_cached_needs_no_store(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri = bucket.put(linear_model())
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url)
    with store.ensure(uri) as snapshot:
        identity = snapshot.snapshot_id
    before = len(proxy.served)
    store.ensure(uri, snapshot_id=identity).close()
    assert len(proxy.served) == before, "a replica that restarts while the store is down must come up"


def test_progress_ends_with_every_byte(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    uri, seen = bucket.put(large_model(9)), list[FetchProgress]()
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url)
    with store.ensure(uri, on_progress=seen.append) as snapshot:
        downloads = [now for now in seen if now.phase == "download"]
        assert downloads[-1].bytes_done == downloads[-1].bytes_total == snapshot.manifest.size_bytes
    assert [now.phase for now in seen if now.phase != "download"] == ["resolve", "wait", "verify", "commit"]


def test_aws_endpoint_url_is_honoured(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    uri = bucket.put(linear_model())
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint_url)
    ModelStore(tmp_path).ensure(uri).close()
    assert proxy.object_gets()


def test_the_report_has_the_shape_of_the_command(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    with ModelStore(tmp_path, endpoint_url=proxy.endpoint_url).ensure(bucket.put(linear_model())) as snapshot:
        report = snapshot.report.to_json()
    assert report["snapshot_id"] == snapshot.snapshot_id
    assert report["path"] == str(snapshot.path)
    assert report["bytes"] == {"store": snapshot.manifest.size_bytes, "node": 0, "image": 0}
    assert list(report["seconds"]) == ["resolve", "wait", "download", "verify", "commit", "total"]  # pyright: ignore[reportArgumentType]


def test_zero_objects_is_an_error_and_publishes_nothing(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    # UR-029
    bucket.put({"README.md": b"#", "folder/": b""})
    store = ModelStore(tmp_path, endpoint_url=proxy.endpoint_url)
    for uri in (f"s3://{bucket.name}/m/", f"s3://{bucket.name}/absent/"):
        with pytest.raises(NoObjectsError):
            store.ensure(uri)
    assert not (tmp_path / "snapshots").exists()
