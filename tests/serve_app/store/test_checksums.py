"""Checksums over parts equal those over the whole, and only whole-object checksums count."""

import base64
import hashlib
import zlib
from pathlib import Path

import pytest
from awscrt import checksums as crt
from hypothesis import given
from hypothesis import strategies as st

from ray_model_serving.store import checksums

_CRCS = ["CRC64NVME", "CRC32C", "CRC32"]


@given(st.sampled_from(_CRCS), st.lists(st.binary(max_size=50), max_size=8))
def test_parts_in_order_combine_into_the_checksum_of_the_whole(name: str, parts: list[bytes]):
    crc = checksums.crc_of(f"{name}/FULL_OBJECT")
    assert crc is not None
    pairs = [(crc.update(part, 0), len(part)) for part in parts]
    assert checksums.combined(crc, pairs) == checksums.encode(crc, crc.update(b"".join(parts), 0))


# The check value of each CRC, for the text 123456789: https://reveng.sourceforge.io/crc-catalogue/all.htm
@pytest.mark.parametrize(
    ("name", "value"), [("CRC64NVME", 0xAE8B14860A799888), ("CRC32C", 0xE3069283), ("CRC32", 0xCBF43926)]
)
def test_each_crc_has_its_published_check_value(name: str, value: int):
    crc = checksums.crc_of(f"{name}/FULL_OBJECT")
    assert crc is not None
    assert crc.update(b"123456789", 0) == value


@pytest.mark.parametrize("name", [*_CRCS, "SHA256"])
def test_a_file_is_read_again_where_parts_do_not_combine(name: str, tmp_path: Path):
    content = bytes(range(256)) * 99
    (tmp_path / "file").write_bytes(content)
    expected = {
        "CRC64NVME": crt.crc64nvme(content).to_bytes(8, "big"),
        "CRC32C": crt.crc32c(content).to_bytes(4, "big"),
        "CRC32": zlib.crc32(content).to_bytes(4, "big"),
        "SHA256": hashlib.sha256(content).digest(),
    }
    assert checksums.of_file(tmp_path / "file", f"{name}/FULL_OBJECT") == base64.b64encode(expected[name]).decode()


MD5 = hashlib.md5(b"x").hexdigest()
AS_MD5 = (base64.b64encode(bytes.fromhex(MD5)).decode(), "MD5/ETAG")


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ({"ChecksumCRC32": "AAAAAA==", "ChecksumCRC64NVME": "BBBB"}, ("BBBB", "CRC64NVME/FULL_OBJECT")),
        ({"ChecksumCRC32": "AAAAAA==-3", "ChecksumType": "COMPOSITE", "ETag": f'"{MD5}-3"'}, None),
        ({"ETag": f'"{MD5}"'}, AS_MD5),
        ({"ETag": f'"{MD5}"', "ServerSideEncryption": "AES256"}, AS_MD5),
        ({"ETag": f'"{MD5}"', "ServerSideEncryption": "aws:kms"}, None),
        ({"ETag": f'"{MD5}"', "SSECustomerAlgorithm": "AES256"}, None),
        ({"ETag": '"not-an-md5-but-32-characters-long"'[:34]}, None),
    ],
)
def test_the_best_checksum_of_the_whole_object_is_chosen(head: dict[str, str], expected: tuple[str, str] | None):
    assert checksums.from_head(head, "bucket") == expected


def test_the_etag_of_a_directory_bucket_is_never_an_md5():
    assert checksums.from_head({"ETag": f'"{MD5}"'}, "models--use1-az4--x-s3") is None
