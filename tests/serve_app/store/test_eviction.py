"""Room for a model: within budget and disk, from what nobody uses, least recently used first; else nothing is lost."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from emulators import RecordingProxy
from emulators.models import Bucket, checkpoint_bytes, read_files
from emulators.proxy import once_before
from ray_model_serving.contract.cache_format import CacheLayout
from ray_model_serving.store import ModelStore
from ray_model_serving.store.errors import NoSpaceError
from ray_model_serving.store.eviction import items_of, plan_eviction
from ray_model_serving.store.locks import open_lock

_MIB = 1024**2


def model_of(mib: int, seed: int) -> dict[str, bytes]:
    """About that many MiB, and different for each seed."""
    values = np.random.default_rng(seed).integers(0, 255, mib * _MIB, dtype=np.uint8)
    return {"model.safetensors": checkpoint_bytes({"weight": values})}


def store_of(root: Path, proxy: RecordingProxy, budget_mib: float | None = None) -> ModelStore:
    budget = None if budget_mib is None else int(budget_mib * _MIB)
    return ModelStore(root, endpoint_url=proxy.endpoint_url, cache_budget_bytes=budget)


def put(bucket: Bucket, count: int, mib: int = 4) -> list[str]:
    return [bucket.put(model_of(mib, seed), f"m{seed}/") for seed in range(count)]


def used_at(root: Path, identity: str, when_s: float) -> None:
    os.utime(CacheLayout(root).lock(identity), (when_s, when_s))


def cached(root: Path) -> set[str]:
    return {path.name for path in (root / "snapshots").iterdir()}


def test_the_least_recently_used_snapshot_goes_when_the_budget_is_full(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-076
    first, second, third = put(bucket, 3)
    store = store_of(tmp_path, proxy, budget_mib=9)
    ids: list[str] = []
    for age, uri in ((1000, first), (2000, second)):
        with store.ensure(uri) as snapshot:
            ids.append(snapshot.snapshot_id)
        used_at(tmp_path, ids[-1], age)
    store.ensure(first).close()  # a use, so that the second is now the older one
    with store.ensure(third) as snapshot:
        assert cached(tmp_path) == {ids[0], snapshot.snapshot_id}
    assert not list((tmp_path / "staging").iterdir())


def test_a_snapshot_in_use_is_never_evicted_and_the_error_has_the_numbers(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-076
    first, second = put(bucket, 2)
    store = store_of(tmp_path, proxy, budget_mib=5)
    with store.ensure(first) as in_use:
        before = len(proxy.object_gets())
        with pytest.raises(NoSpaceError) as raised:
            store.ensure(second)
        assert raised.value.permanent
        assert f"budget of {5 * _MIB}" in raised.value.message
        assert "0 of them could go" in raised.value.message
        assert len(proxy.object_gets()) == before, "found before the first byte"
        assert read_files(in_use.path) == model_of(4, 0)
    store.ensure(second).close()
    assert in_use.snapshot_id not in cached(tmp_path), "once it is let go, it may go"


def test_nothing_is_evicted_for_a_model_that_would_not_fit_anyway(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    # UR-076
    (first,) = put(bucket, 1)
    store = store_of(tmp_path, proxy, budget_mib=5)
    store.ensure(first).close()
    before = cached(tmp_path)
    with pytest.raises(NoSpaceError):
        store.ensure(bucket.put(model_of(6, 9), "large/"))
    assert cached(tmp_path) == before


def test_compile_caches_go_before_snapshots_and_not_while_they_are_locked(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    first, second, third = put(bucket, 3)
    store = store_of(tmp_path, proxy, budget_mib=12)
    with store.ensure(first) as snapshot:
        identity = snapshot.snapshot_id
    used_at(tmp_path, identity, 1)
    layout = CacheLayout(tmp_path)
    for name in ("busy", "idle"):
        (layout.compiled / name).mkdir(parents=True)
        (layout.compiled / name / "kernel.so").write_bytes(bytes(2 * _MIB))
    busy = open_lock(layout.lock("compiled-busy"))
    assert busy.try_shared()
    store.ensure(second).close()
    assert not (layout.compiled / "idle").exists()
    assert identity in cached(tmp_path), "what is cheap to make again goes first, however recent"
    store.ensure(third).close()
    assert (layout.compiled / "busy").exists()
    assert identity not in cached(tmp_path)
    busy.release()


def test_an_unfinished_download_gives_way_before_anything_else(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    first, second = put(bucket, 2)
    store = store_of(tmp_path, proxy, budget_mib=9)
    store.ensure(first).close()
    left = tmp_path / "staging" / f"{'e' * 32}.x"
    (left / "files").mkdir(parents=True)
    (left / "files" / "part").write_bytes(bytes(3 * _MIB))
    (left / "journal").write_text("")
    store.ensure(second).close()
    assert not left.exists()
    assert len(cached(tmp_path)) == 2


def test_a_plan_changes_nothing_until_it_is_executed(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    for uri in put(bucket, 2, mib=1):
        store_of(tmp_path, proxy).ensure(uri).close()
    layout = CacheLayout(tmp_path)
    before = cached(tmp_path)
    plan = plan_eviction(layout, items_of(layout), free_bytes=10**12)
    assert {item.path.name for item in plan.items} == before
    assert plan.short_bytes == 10**12 - plan.freed_bytes
    assert cached(tmp_path) == before
    in_use = open_lock(layout.lock(plan.items[0].lock_name))
    assert in_use.try_shared()
    assert plan.execute() == plan.items[1].size_bytes, "what came into use since the plan stays"
    assert cached(tmp_path) == {plan.items[0].path.name}
    in_use.release()


def test_a_use_is_recorded_also_when_nothing_is_downloaded(proxy: RecordingProxy, bucket: Bucket, tmp_path: Path):
    (uri,) = put(bucket, 1, mib=1)
    store = store_of(tmp_path, proxy)
    with store.ensure(uri) as snapshot:
        identity = snapshot.snapshot_id
    used_at(tmp_path, identity, 1)
    store.ensure(uri, snapshot_id=identity).close()
    assert CacheLayout(tmp_path).lock(identity).stat().st_mtime > 1


def test_a_clock_that_jumps_back_changes_the_order_and_nothing_else(
    proxy: RecordingProxy, bucket: Bucket, tmp_path: Path
):
    first, second, third = put(bucket, 3)
    store = store_of(tmp_path, proxy, budget_mib=9)
    with store.ensure(first) as snapshot:
        identity = snapshot.snapshot_id
    used_at(tmp_path, identity, 2**33)  # the year 2242
    store.ensure(second).close()
    with store.ensure(third) as snapshot:
        assert cached(tmp_path) == {identity, snapshot.snapshot_id}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a small tmpfs needs root and CAP_SYS_ADMIN")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_full_disk_loses_nothing_and_works_again_when_there_is_room(
    proxy: RecordingProxy, bucket: Bucket, small_disk: Path
):
    # UR-076
    first, second = put(bucket, 2)
    root = small_disk / "cache"
    store = store_of(root, proxy)
    with store.ensure(first) as in_use:
        filler = small_disk / "of another process"
        filler.write_bytes(bytes(10 * _MIB))
        with pytest.raises(NoSpaceError, match="bytes are free"):
            store.ensure(second)
        assert not list((root / "staging").iterdir())
        assert read_files(in_use.path) == model_of(4, 0)
        filler.unlink()
        with store.ensure(second) as snapshot:
            assert read_files(snapshot.path) == model_of(4, 1)


def test_without_a_budget_the_disk_is_the_bound(proxy: RecordingProxy, bucket: Bucket, small_disk: Path):
    # UR-076
    store = store_of(small_disk / "cache", proxy)
    for uri in put(bucket, 3, mib=7):
        store.ensure(uri).close()
    assert len(cached(small_disk / "cache")) == 2
    with pytest.raises(NoSpaceError):
        store.ensure(bucket.put(model_of(20, 9), "large/"))


def test_a_disk_that_fills_while_bytes_arrive_frees_what_was_staged(
    proxy: RecordingProxy, bucket: Bucket, small_disk: Path, monkeypatch: pytest.MonkeyPatch
):
    # UR-076
    (uri,) = put(bucket, 1, mib=8)
    store = store_of(small_disk / "cache", proxy)

    def take_no_blocks(descriptor: int, offset: int, length: int) -> None:
        """As where blocks can't be taken beforehand; another process may take them meanwhile."""

    monkeypatch.setattr(os, "posix_fallocate", take_no_blocks)
    filler = small_disk / "of another process"

    proxy.rule = once_before(0, lambda: filler.write_bytes(bytes(12 * _MIB)), only=lambda r: r.is_object_get)
    with pytest.raises(NoSpaceError, match="No space left"):
        store.ensure(uri)
    assert not list((small_disk / "cache" / "staging").iterdir())
    filler.unlink()
    store.ensure(uri).close()


def test_a_read_only_cache_still_serves_what_it_holds(proxy: RecordingProxy, bucket: Bucket, small_disk: Path):
    # UR-077
    (uri,) = put(bucket, 1)
    store = store_of(small_disk / "cache", proxy)
    store.ensure(uri).close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with store.ensure(uri) as snapshot:
        assert snapshot.report.bytes_store == 0
        assert read_files(snapshot.path) == model_of(4, 0)
