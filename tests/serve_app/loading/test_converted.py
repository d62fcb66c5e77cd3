"""The converted copy is made once per node, is mapped by every later replica, and is never half there."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

from emulators.models import checkpoint_bytes, linear_model, write_files
from ray_model_serving.contract.cache_format import CacheLayout, converted_id
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.loading import ConvertedCopies, LoadedModel, converted, load
from ray_model_serving.loading.plain import build_plain
from ray_model_serving.store import ModelStore, Snapshot, cache
from ray_model_serving.store.checksums import of_file
from ray_model_serving.store.errors import CacheNotWritableError, LockTimeoutError
from ray_model_serving.store.locks import open_lock

MIB = 1024**2
NewSnapshot = Callable[[dict[str, bytes]], Snapshot]


def load_half(snapshot: Snapshot, copies: ConvertedCopies | None, dtype: Dtype = Dtype.FLOAT16) -> LoadedModel:
    return load(snapshot, build_plain(snapshot), dtype=dtype, device=Device.CPU, keep_converted=copies)


def wide(mib: int, layers: int = 8) -> dict[str, bytes]:
    side = int((mib * MIB / 4 / layers) ** 0.5)
    values = np.random.default_rng(5).standard_normal((side, side), dtype=np.float32)
    return {"model.safetensors": checkpoint_bytes({f"{number}.weight": values + number for number in range(layers)})}


def values_of(module: nn.Module) -> dict[str, list[float]]:
    return {name: value.float().flatten().tolist() for name, value in module.state_dict().items()}


def test_the_copy_has_the_values_of_a_conversion_in_memory(layout: CacheLayout, new_snapshot: NewSnapshot):
    files = {
        "a.safetensors": checkpoint_bytes({"ids": np.arange(5), "x": np.linspace(-3, 3, 7, dtype=np.float32)}),
        "b.safetensors": checkpoint_bytes(
            {"empty": np.zeros((0, 4), np.float32), "one": np.array(1 / 3), "flag": np.array([True])}
        ),
    }
    snapshot = new_snapshot(files)
    for dtype in (Dtype.FLOAT16, Dtype.BFLOAT16):
        loaded = load_half(snapshot, ConvertedCopies(layout=layout), dtype)
        plain = load_half(snapshot, None, dtype)
        assert loaded.copy is not None
        assert values_of(loaded.module) == values_of(plain.module)
        types = {name: value.dtype for name, value in plain.module.state_dict().items()}
        assert {name: value.dtype for name, value in loaded.module.state_dict().items()} == types
        loaded.copy.close()


def test_a_later_replica_maps_the_copy_and_takes_no_anonymous_memory(layout: CacheLayout, new_snapshot: NewSnapshot):
    # UR-089
    snapshot, copies = new_snapshot(wide(128)), ConvertedCopies(layout=layout)
    first = load_half(snapshot, copies)
    assert first.report.peak_anon_bytes < 48 * MIB, "the copy is written block by block, never whole in memory"
    assert first.report.seconds["convert"] > 0
    second = load_half(snapshot, copies)
    assert all(bool(torch.isfinite(value).all()) for value in second.module.state_dict().values())
    assert second.report.peak_anon_bytes < 0.15 * second.report.model_bytes
    assert second.report.model_bytes < 65 * MIB
    assert second.copy
    assert str(second.copy.path) in Path("/proc/self/maps").read_text()
    for loaded in (first, second):
        assert loaded.copy
        loaded.copy.close()


def test_the_record_names_parent_type_and_what_each_file_is_checked_by(layout: CacheLayout, new_snapshot: NewSnapshot):
    snapshot = new_snapshot(linear_model())
    loaded = load_half(snapshot, ConvertedCopies(layout=layout))
    assert loaded.copy
    with loaded.copy as copy:
        assert copy.snapshot_id == converted_id(snapshot.snapshot_id, "float16")
        document = json.loads((copy.path / "snapshot.json").read_text())
        assert (document["parent"], document["dtype"]) == (snapshot.snapshot_id, "float16")
        for entry in copy.manifest.files:
            assert entry.checksum_type
            assert of_file(copy.path / entry.path, entry.checksum_type) == entry.checksum
            assert (copy.path / entry.path).stat().st_mode & 0o777 == 0o444
        assert cache.find_whole(layout, copy.snapshot_id) == copy.manifest


def test_a_held_copy_can_not_be_locked_for_eviction(layout: CacheLayout, new_snapshot: NewSnapshot):
    loaded = load_half(new_snapshot(linear_model()), ConvertedCopies(layout=layout))
    assert loaded.copy
    other = open_lock(layout.lock(loaded.copy.snapshot_id))
    assert not other.try_exclusive()
    loaded.copy.close()
    assert other.try_exclusive()
    other.release()


def test_weights_of_the_wanted_type_need_no_copy(layout: CacheLayout, new_snapshot: NewSnapshot):
    snapshot, copies = new_snapshot(linear_model()), ConvertedCopies(layout=layout)
    for dtype in (Dtype.AUTO, Dtype.FLOAT32):
        assert load_half(snapshot, copies, dtype).copy is None
    assert [path.name for path in layout.snapshots.iterdir()] == [snapshot.snapshot_id]


def test_a_directory_used_in_place_is_never_the_parent_of_a_copy(layout: CacheLayout, tmp_path: Path):
    directory = write_files(tmp_path / "model", linear_model())
    with ModelStore(layout.root).ensure(f"file://{directory}") as snapshot:
        loaded = load_half(snapshot, ConvertedCopies(layout=layout))
    assert loaded.copy is None, "images give every file one time: the same id does not mean the same weights"
    assert not list(layout.snapshots.iterdir())


@pytest.mark.parametrize("broken", ["write", "publish"])
def test_a_failed_conversion_leaves_nothing_and_the_next_one_succeeds(
    broken: str, layout: CacheLayout, new_snapshot: NewSnapshot, monkeypatch: pytest.MonkeyPatch
):
    snapshot, copies = new_snapshot(linear_model()), ConvertedCopies(layout=layout)

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(*{"write": (converted.Rewrite, "write"), "publish": (cache, "publish")}[broken], fail)
        with pytest.raises(OSError, match="Input/output error"):
            load_half(snapshot, copies)
    assert not list(layout.staging.iterdir())
    assert [path.name for path in layout.snapshots.iterdir()] == [snapshot.snapshot_id]
    loaded = load_half(snapshot, copies)
    assert loaded.copy, "the lock is free again"
    loaded.copy.close()


def test_staging_of_a_killed_conversion_is_removed_by_the_next(layout: CacheLayout, new_snapshot: NewSnapshot):
    snapshot = new_snapshot(linear_model())
    left = layout.staging / f"{converted_id(snapshot.snapshot_id, 'float16')}.dead"
    write_files(left / "files", {"model.safetensors": b"half"})
    loaded = load_half(snapshot, ConvertedCopies(layout=layout))
    assert loaded.copy
    loaded.copy.close()
    assert not left.exists()


@pytest.mark.parametrize("reason", ["budget", "space", "rights"])
def test_where_a_copy_has_no_place_the_load_goes_on_without_it(
    reason: str,
    layout: CacheLayout,
    new_snapshot: NewSnapshot,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    snapshot = new_snapshot(wide(4))
    if reason == "space":
        monkeypatch.setattr("ray_model_serving.store.room.free_bytes", Mock(return_value=MIB))
    if reason == "rights":
        refusal = CacheNotWritableError("not writable for uid 1000")
        monkeypatch.setattr(cache, "prepare", Mock(side_effect=refusal))
    loaded = load_half(snapshot, ConvertedCopies(layout=layout, budget_bytes=5 * MIB if reason == "budget" else None))
    assert loaded.copy is None
    assert {value.dtype for value in loaded.module.state_dict().values()} == {torch.float16}
    assert "the converted weights are not kept" in caplog.text
    assert [path.name for path in layout.snapshots.iterdir()] == [snapshot.snapshot_id]


def test_a_copy_may_take_the_place_of_a_snapshot_that_nobody_uses(layout: CacheLayout, new_snapshot: NewSnapshot):
    old = new_snapshot({**wide(4), "config.json": b"old"})
    old.close()
    snapshot = new_snapshot(wide(4))
    loaded = load_half(snapshot, ConvertedCopies(layout=layout, budget_bytes=8 * MIB))
    assert loaded.copy
    kept = {path.name for path in layout.snapshots.iterdir()}
    assert kept == {snapshot.snapshot_id, loaded.copy.snapshot_id}, "the original is in use, the old one is not"
    loaded.copy.close()


def test_a_budget_that_holds_original_and_copy_is_enough(layout: CacheLayout, new_snapshot: NewSnapshot):
    loaded = load_half(new_snapshot(wide(4)), ConvertedCopies(layout=layout, budget_bytes=7 * MIB))
    assert loaded.copy
    loaded.copy.close()


def test_whoever_makes_the_copy_for_too_long_is_named(layout: CacheLayout, new_snapshot: NewSnapshot):
    snapshot = new_snapshot(linear_model())
    other = open_lock(layout.lock(converted_id(snapshot.snapshot_id, "float16")))
    assert other.try_exclusive()
    other.sign()
    with pytest.raises(LockTimeoutError, match="pid"):
        load_half(snapshot, ConvertedCopies(layout=layout, deadline_s=0.2))
    other.release()


_REPLICA = """
import sys
from pathlib import Path
from ray_model_serving.contract.cache_format import CacheLayout, Manifest
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.loading import ConvertedCopies, load, rewrite
from ray_model_serving.loading.plain import build_plain
from ray_model_serving.store import cache
from ray_model_serving.store.report import snapshot_of
layout = CacheLayout(Path(sys.argv[1]))
manifest = cache.find_whole(layout, sys.argv[2])
path = layout.snapshot(sys.argv[2])
snapshot = snapshot_of(path, manifest, {}, source="node")
written = 0
write = rewrite.Rewrite.write
def counted(self, *arguments, **options):
    global written
    written += 1
    write(self, *arguments, **options)
rewrite.Rewrite.write = counted
print("ready", flush=True)
sys.stdin.readline()
loaded = load(
    snapshot, build_plain(snapshot), dtype=Dtype.BFLOAT16, device=Device.CPU,
    keep_converted=ConvertedCopies(layout=layout, deadline_s=60),
)
print(written, loaded.copy.snapshot_id, flush=True)
"""


def test_replicas_that_start_at_once_make_one_copy(layout: CacheLayout, new_snapshot: NewSnapshot):
    snapshot = new_snapshot(wide(64))
    command = [sys.executable, "-c", _REPLICA, str(layout.root), snapshot.snapshot_id]
    replicas = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for replica in replicas:
        assert replica.stdout
        assert replica.stdout.readline() == "ready\n"
    for replica in replicas:
        assert replica.stdin
        replica.stdin.write("go\n")
        replica.stdin.flush()
    answers = [replica.communicate(timeout=150)[0].split() for replica in replicas]
    assert sorted(answer[0] for answer in answers) == ["0", "1"]
    assert {answer[1] for answer in answers} == {converted_id(snapshot.snapshot_id, "bfloat16")}
    assert len(list(layout.snapshots.iterdir())) == 2
    assert not list(layout.staging.iterdir())


def test_pickled_weights_are_kept_as_safetensors_with_their_ties(layout: CacheLayout, new_snapshot: NewSnapshot):
    shared = torch.linspace(-1, 1, 12).reshape(4, 3)
    buffer = io.BytesIO()
    torch.save({"embedding.weight": shared, "output.weight": shared}, buffer)
    snapshot = new_snapshot({"pytorch_model.bin": buffer.getvalue()})

    def build(_: Path) -> nn.Module:
        module = nn.Module()
        module.embedding, module.output = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        return module

    copies = ConvertedCopies(layout=layout)
    loaded = load(snapshot, build, dtype=Dtype.FLOAT16, device=Device.CPU, keep_converted=copies)
    assert loaded.copy
    assert [entry.path for entry in loaded.copy.manifest.files] == ["pytorch_model.bin.safetensors"]
    assert loaded.copy.manifest.size_bytes < 400, "tied weights are stored once"
    for name in ("embedding.weight", "output.weight"):
        assert torch.equal(loaded.module.get_parameter(name), shared.half())
    loaded.copy.close()
