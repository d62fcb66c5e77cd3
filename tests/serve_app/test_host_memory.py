"""How much memory is left, from cgroups of both versions."""

from pathlib import Path

import pytest

from emulators.models import linear_model, write_files
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.host_memory import LimitReader, MemoryLimit, tightest_limit
from ray_model_serving.loading.errors import InsufficientMemoryError
from ray_model_serving.loading.preflight import check_host_memory
from ray_model_serving.store import ModelStore
from ray_model_serving.store.checkpoint import read_directory

V2_STAT = "anon 300\nfile 900\nshmem 50\n"
V1_STAT = "cache 900\nrss 1\ntotal_rss 300\ntotal_shmem 50\n"
V1_UNLIMITED = "9223372036854771712"


def tree(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    write_files(root, {"proc/self/cgroup": cgroup.encode()})
    write_files(root / "sys/fs/cgroup", {name: text.encode() for name, text in files.items()})
    return root


def limit_of(root: Path) -> tuple[int, int] | None:
    found = tightest_limit(root)
    return (found.limit_bytes, found.available_bytes) if found else None


def test_version_2_in_a_container_of_its_own_namespace(tmp_path: Path):
    root = tree(tmp_path, "0::/\n", {"memory.max": "1000\n", "memory.stat": V2_STAT})
    assert limit_of(root) == (1000, 650), "page cache is not in use: the kernel drops it before it kills"


def test_the_tightest_of_nested_limits_counts(tmp_path: Path):
    files = {
        "pod/memory.max": "800", "pod/memory.stat": V2_STAT,
        "pod/container/memory.max": "max", "pod/container/memory.stat": V2_STAT,
    }  # fmt: skip
    assert limit_of(tree(tmp_path, "0::/pod/container\n", files)) == (800, 450)


def test_version_1_with_the_hosts_path_that_the_container_does_not_see(tmp_path: Path):
    files = {"memory/memory.limit_in_bytes": "1000", "memory/memory.stat": V1_STAT}
    assert limit_of(tree(tmp_path, "4:memory:/kubepods/pod7/abc\n1:cpu:/\n0::/\n", files)) == (1000, 650)


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/\n", {}),
        ("0::/\n", {"memory.max": "max", "memory.stat": V2_STAT}),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": V1_UNLIMITED, "memory/memory.stat": V1_STAT}),
    ],
)
def test_no_limit_is_none(cgroup: str, files: dict[str, str], tmp_path: Path):
    assert limit_of(tree(tmp_path, cgroup, files)) is None


def test_this_machine_can_be_asked():
    found = tightest_limit()
    assert found is None or 0 <= found.available_bytes <= found.limit_bytes


def test_a_load_that_the_cgroup_has_no_room_for_is_refused_with_both_numbers(tmp_path: Path):
    # UR-002
    directory = write_files(tmp_path / "model", linear_model())
    manifest = ModelStore(tmp_path).resolve(f"file://{directory}")
    checkpoint = read_directory(directory, manifest.files)
    limit = MemoryLimit(path=Path("/sys/fs/cgroup/memory.max"), limit_bytes=1000, used_bytes=990)
    with pytest.raises(InsufficientMemoryError) as raised:
        check_host_memory(checkpoint, Dtype.FLOAT16, Device.CPU, None, limit)
    assert "needs 16 bytes" in raised.value.message
    assert "10 bytes are left of the limit of 1000 bytes" in raised.value.message
    check_host_memory(checkpoint, Dtype.AUTO, Device.CPU, 0, limit)


GOOD = {"memory.max": b"1000\n", "memory.stat": V2_STAT.encode()}


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        (None, GOOD),
        (b"junk\n", GOOD),
        (b"\xff\xfe\n", GOOD),
        (b"0::/\n", {**GOOD, "memory.max": b"plenty\n"}),
        (b"0::/\n", {**GOOD, "memory.max": b"\xff\n"}),
        (b"0::/\n", {**GOOD, "memory.stat": b"anon many\n"}),
        (b"0::/\n", {**GOOD, "memory.stat": b"anon\n"}),
    ],
)
def test_what_can_not_be_read_is_no_limit_and_one_line_in_the_log(
    cgroup: bytes | None, files: dict[str, bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    write_files(tmp_path, {"proc/self/cgroup": cgroup} if cgroup else {})
    write_files(tmp_path / "sys/fs/cgroup", files)
    assert limit_of(tmp_path) is None, "a figure that is only wanted may not fail a load"
    assert len(caplog.records) == 1


def test_a_line_that_is_junk_does_not_hide_the_limit_of_another(tmp_path: Path):
    files = {name: content.decode() for name, content in GOOD.items()}
    assert limit_of(tree(tmp_path, "junk\n0::/\n", files)) == (1000, 650)


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        (
            "0::/\n",
            {
                "memory.max": "1000",
                "memory.current": "900",
                "memory.stat": "anon 300\nshmem 50\nactive_file 200\ninactive_file 100\n",
            },
        ),
        (
            "4:memory:/\n",
            {
                "memory/memory.limit_in_bytes": "1000",
                "memory/memory.usage_in_bytes": "900",
                "memory/memory.stat": "total_rss 300\ntotal_shmem 50\ntotal_active_file 200\ntotal_inactive_file 100\n",
            },
        ),
    ],
)
def test_what_rays_monitor_counts_has_kernel_memory_too(cgroup: str, files: dict[str, str], tmp_path: Path):
    limit = LimitReader(tree(tmp_path, cgroup, files)).read()
    assert limit is not None
    assert (limit.used_bytes, limit.charged_bytes) == (350, 600)


def test_a_reader_sees_what_changes_after_it_was_made(tmp_path: Path):
    reader = LimitReader(tree(tmp_path, "0::/\n", {"memory.max": "max", "memory.stat": V2_STAT}))
    assert reader.read() is None
    tree(tmp_path, "0::/\n", {"memory.max": "400", "memory.stat": V2_STAT})
    limit = reader.read()
    assert limit is not None, "a pod's limit can be changed while it runs"
    assert limit.limit_bytes == 400
