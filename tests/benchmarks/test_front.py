"""The store of the benchmarks answers as the real store code expects."""

from pathlib import Path

import boto3
import pytest
import torch
from botocore.config import Config

from benchmarks.checkpoints import load_directory, make_checkpoint
from benchmarks.front import StoredObject, answer, front_server
from benchmarks.object_store import BUCKET, nginx_binary, parse_log, stored_object
from ray_model_serving.store import ModelStore

OBJECTS = {
    "a/model.safetensors": StoredObject(size_bytes=300, modified_s=0x6B0E4158, crc64nvme="AAAAAAAAAAA="),
    "a/sub/x.json": StoredObject(size_bytes=2, modified_s=1, crc64nvme="AAAAAAAAAAA="),
    "b/y & z.json": StoredObject(size_bytes=3, modified_s=1, crc64nvme="AAAAAAAAAAA="),
}


def test_head_tells_size_checksum_and_the_etag_that_nginx_makes() -> None:
    found = answer(OBJECTS, BUCKET, "HEAD", f"/{BUCKET}/a/model.safetensors")

    assert found.status == 200
    assert found.headers["Content-Length"] == "300"
    assert found.headers["ETag"] == '"6b0e4158-12c"', "nginx compares If-Match with time and size in hexadecimal"
    assert found.headers["x-amz-checksum-crc64nvme"] == "AAAAAAAAAAA="
    assert found.headers["x-amz-checksum-type"] == "FULL_OBJECT"


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("HEAD", f"/{BUCKET}", 200),
        ("HEAD", f"/{BUCKET}/missing", 404),
        ("GET", "/other?list-type=2", 404),
        ("PUT", f"/{BUCKET}/a/model.safetensors", 501),
        ("GET", f"/{BUCKET}?versions", 501),
    ],
)
def test_what_is_not_there_is_refused_as_s3_would(method: str, target: str, status: int) -> None:
    assert answer(OBJECTS, BUCKET, method, target).status == status


def test_a_listing_is_one_that_boto3_reads_with_prefix_delimiter_and_odd_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with front_server(OBJECTS, BUCKET) as port:
        client = boto3.client(
            "s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}),
        )  # fmt: skip
        flat = client.list_objects_v2(Bucket=BUCKET)
        rolled = client.list_objects_v2(Bucket=BUCKET, Prefix="a/", Delimiter="/")
        client.close()

    assert [item["Key"] for item in flat["Contents"]] == sorted(OBJECTS)  # pyright: ignore[reportTypedDictNotRequiredAccess]
    assert [item["Key"] for item in rolled["Contents"]] == ["a/model.safetensors"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    assert rolled["CommonPrefixes"] == [{"Prefix": "a/sub/"}]  # pyright: ignore[reportTypedDictNotRequiredAccess]


def test_only_gets_of_objects_count_as_served() -> None:
    log = "GET /bench 200 900\nHEAD /bench/a 200 0\nGET /bench/m/a.safetensors 206 8388608\nGET /bench/m/b 412 190\n"

    assert [(one.key, one.status, one.body_bytes) for one in parse_log(log)] == [
        ("m/a.safetensors", 206, 8388608),
        ("m/b", 412, 190),
    ]


def test_a_stored_object_has_the_checksum_of_its_content(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"123456789")

    # The check value of CRC-64/NVME is 0xae8b14860a799888.
    assert stored_object(path).crc64nvme == "rosUhgp5mIg="


def test_the_real_store_resolves_a_model_with_a_checksum_for_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with front_server(OBJECTS, BUCKET) as port:
        manifest = ModelStore(tmp_path, endpoint_url=f"http://127.0.0.1:{port}").resolve(f"s3://{BUCKET}/a/")

    assert {entry.path: entry.size_bytes for entry in manifest.files} == {"model.safetensors": 300, "sub/x.json": 2}
    assert {entry.checksum_type for entry in manifest.files} == {"CRC64NVME/FULL_OBJECT"}, (
        "without checksums in the store a benchmark would measure less than production does"
    )


def test_without_nginx_the_benchmark_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="apt-get install"):
        nginx_binary(system_folders=str(tmp_path))


def test_layers_are_those_that_were_asked_for_in_every_shard(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "m", 8, shards=2)
    module = load_directory(tmp_path / "m")

    assert sum(parameter.nbytes for parameter in module.parameters()) == 2 * 8 * 1024**2
    first, second = module.parameters()
    assert not torch.equal(first.view(torch.int16), second.view(torch.int16)), (
        "equal shards would hide a client that fetches one of them twice"
    )
    with pytest.raises(SystemExit, match="multiple"):
        make_checkpoint(tmp_path / "n", 9)
