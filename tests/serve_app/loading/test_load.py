"""A snapshot becomes a module: the right values, at the memory that was promised, or one clear error before it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn

from emulators.models import checkpoint_bytes, linear_model, write_files
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.loading import LoadedModel, load
from ray_model_serving.loading.errors import (
    BuildFailedError,
    CheckpointMismatchError,
    DeviceUnavailableError,
    InsufficientMemoryError,
    LeftOnMetaError,
    UnsupportedCheckpointError,
)
from ray_model_serving.loading.loader import _move_buffers
from ray_model_serving.loading.plain import build_plain
from ray_model_serving.store import ModelStore

MIB = 1024**2
Build = Callable[[Path], nn.Module]


def load_files(
    tmp_path: Path,
    files: dict[str, bytes],
    build: Build,
    *,
    dtype: Dtype = Dtype.AUTO,
    device: Device = Device.CPU,
    host_peak_bytes: int | None = None,
    ignore_keys: Sequence[str] = (),
) -> LoadedModel:
    directory = write_files(tmp_path / "model", files)
    with ModelStore(tmp_path / "cache").ensure(f"file://{directory}") as snapshot:
        return load(
            snapshot, build, dtype=dtype, device=device, host_peak_bytes=host_peak_bytes, ignore_keys=ignore_keys
        )


def linear(directory: Path) -> nn.Module:
    return nn.Linear(3, 2)


def wide(mib: int, layers: int = 16) -> tuple[dict[str, bytes], Build]:
    """Weights of ``mib`` MiB in float32 over several layers, and the module for them."""
    side = int((mib * MIB / 4 / layers) ** 0.5)
    values = np.random.default_rng(3).standard_normal((side, side), dtype=np.float32)
    content = checkpoint_bytes({f"{number}.weight": values + number for number in range(layers)})
    return {"model.safetensors": content}, lambda _: nn.Sequential(
        *(nn.Linear(side, side, bias=False) for _ in range(layers))
    )


def test_the_module_computes_what_its_weights_say_and_is_ready_for_inference(tmp_path: Path):
    module = load_files(tmp_path, linear_model(), linear).module
    output = module(torch.tensor([[1.0, 10.0, 100.0]]))
    assert output.tolist() == [[211.0, 544.0]]
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_the_same_type_is_mapped_and_takes_no_anonymous_memory(tmp_path: Path):
    files, build = wide(128)
    loaded = load_files(tmp_path, files, build)
    touched = sum(float(parameter.sum()) for parameter in loaded.module.parameters())
    assert np.isfinite(touched)
    assert loaded.report.model_bytes > 120 * MIB
    assert loaded.report.peak_anon_bytes < 16 * MIB, "the module's weights are the file, which replicas share"


@pytest.mark.parametrize(("dtype", "kind"), [(Dtype.FLOAT16, torch.float16), (Dtype.BFLOAT16, torch.bfloat16)])
def test_a_conversion_peaks_at_the_size_of_the_converted_weights(dtype: Dtype, kind: torch.dtype, tmp_path: Path):
    # UR-089
    files, build = wide(128)
    loaded = load_files(tmp_path, files, build, dtype=dtype)
    assert {parameter.dtype for parameter in loaded.module.parameters()} == {kind}
    assert loaded.report.model_bytes < 65 * MIB
    assert loaded.report.peak_anon_bytes <= 1.1 * loaded.report.model_bytes + 8 * MIB, "one tensor at a time"
    assert loaded.report.seconds["convert"] > 0


_REPLICA = """
import sys
from pathlib import Path
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.loading import load
from ray_model_serving.loading.plain import build_plain
from ray_model_serving.store import ModelStore
snapshot = ModelStore(Path("unused")).ensure(sys.argv[1])
module = load(snapshot, build_plain(snapshot), dtype=Dtype.AUTO, device=Device.CPU).module
sum(float(buffer.sum()) for buffer in module.buffers())
print("ready", flush=True)
sys.stdin.readline()
"""


def resident_and_private_bytes(pid: int, name: str) -> tuple[int, int]:
    """Bytes of the mappings of a file in a process, and those of them that no other process shares."""
    resident = private = 0
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):
            inside = line.endswith(name)
        elif inside and fields[0] == "Rss:":
            resident += int(fields[1]) * 1024
        elif inside and fields[0] in ("Private_Clean:", "Private_Dirty:"):
            private += int(fields[1]) * 1024
    return resident, private


def test_replicas_of_a_node_share_the_pages_of_one_file(tmp_path: Path):
    files, build = wide(64)
    here = load_files(tmp_path, files, build).module
    assert np.isfinite(sum(float(parameter.sum()) for parameter in here.parameters()))
    command = [sys.executable, "-c", _REPLICA, f"file://{tmp_path / 'model'}"]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout
        assert other.stdout.readline() == "ready\n"
        for pid in (os.getpid(), other.pid):
            resident, private = resident_and_private_bytes(pid, f"{tmp_path}/model/model.safetensors")
            assert resident > 60 * MIB
            assert private < 4 * MIB, "a second replica costs no memory for weights"
    finally:
        other.communicate("", timeout=30)


def test_shards_make_one_module(tmp_path: Path):
    index = {"weight_map": {"weight": "1.safetensors", "bias": "2.safetensors"}}
    files = {
        "model.safetensors.index.json": json.dumps(index).encode(),
        "1.safetensors": checkpoint_bytes({"weight": np.full((2, 3), 2, dtype=np.float32)}),
        "2.safetensors": checkpoint_bytes({"bias": np.full(2, 5, dtype=np.float32)}),
    }
    module = load_files(tmp_path, files, linear).module
    assert module(torch.ones(1, 3)).tolist() == [[11.0, 11.0]]


class Tied(nn.Module):
    """An output layer that is its embedding, as in most language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.output = nn.Linear(3, 4, bias=False)
        self.output.weight = self.embedding.weight


EMBEDDING = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("stored", [["embedding.weight"], ["output.weight"], ["embedding.weight", "output.weight"]])
@pytest.mark.parametrize("dtype", [Dtype.AUTO, Dtype.FLOAT16])
def test_tied_weights_stay_one_tensor_whichever_name_they_are_stored_under(
    stored: list[str], dtype: Dtype, tmp_path: Path
):
    files = {"model.safetensors": checkpoint_bytes(dict.fromkeys(stored, EMBEDDING))}
    loaded = load_files(tmp_path, files, lambda _: Tied(), dtype=dtype)
    module = loaded.module
    assert isinstance(module, Tied)
    assert module.output.weight is module.embedding.weight
    assert module.output.weight.float().tolist() == EMBEDDING.tolist()
    assert loaded.report.model_bytes == 12 * (2 if dtype is Dtype.FLOAT16 else 4), "counted once"


def test_tied_weights_that_differ_in_the_checkpoint_are_refused(tmp_path: Path):
    content = checkpoint_bytes({"embedding.weight": EMBEDDING, "output.weight": EMBEDDING + 1})
    with pytest.raises(CheckpointMismatchError, match=r"output\.weight is one with embedding\.weight"):
        load_files(tmp_path, {"model.safetensors": content}, lambda _: Tied())


def test_missing_unexpected_and_misshapen_tensors_are_one_error(tmp_path: Path):
    content = checkpoint_bytes({"weight": np.zeros((9, 3), dtype=np.float32), "pooler": np.zeros(1, dtype=np.float32)})
    with pytest.raises(CheckpointMismatchError) as raised:
        load_files(tmp_path, {"model.safetensors": content}, linear)
    text = raised.value.message
    assert "1 missing:\n  - bias" in text
    assert "1 unexpected:\n  - pooler" in text
    assert "weight: the model has [2, 3], the checkpoint [9, 3]" in text


def test_keys_that_the_model_class_ignores_may_be_left_over(tmp_path: Path):
    files = linear_model()
    files["extra.safetensors"] = checkpoint_bytes({"pooler.weight": np.zeros(1, dtype=np.float32)})
    assert load_files(tmp_path, files, linear, ignore_keys=["pooler.*"]).report.model_bytes == 32


class WithBuffer(nn.Linear):
    def __init__(self, device: str | None) -> None:
        super().__init__(3, 2)
        self.register_buffer("positions", torch.arange(5, device=device), persistent=False)


def test_a_buffer_that_nothing_gives_a_value_is_an_error_that_names_it(tmp_path: Path):
    with pytest.raises(LeftOnMetaError, match="positions") as raised:
        load_files(tmp_path, linear_model(), lambda _: WithBuffer(device=None))
    assert "device='cpu'" in raised.value.hint


def test_a_buffer_that_build_gives_a_value_keeps_it(tmp_path: Path):
    module = load_files(tmp_path, linear_model(), lambda _: WithBuffer(device="cpu")).module
    assert module.get_buffer("positions").tolist() == [0, 1, 2, 3, 4]


def test_integers_keep_their_type_in_a_conversion(tmp_path: Path):
    content = checkpoint_bytes({"ids": np.arange(3), "scale": np.ones(2, dtype=np.float32)})
    directory = write_files(tmp_path / "model", {"model.safetensors": content})
    with ModelStore(tmp_path / "cache").ensure(f"file://{directory}") as snapshot:
        module = load(snapshot, build_plain(snapshot), dtype=Dtype.FLOAT16, device=Device.CPU).module
    assert module.get_buffer("ids").dtype is torch.int64
    assert module.get_buffer("scale").dtype is torch.float16


def test_a_load_over_its_declared_peak_is_refused_before_a_weight_is_read(tmp_path: Path):
    # UR-002
    files, build = wide(64)
    built: list[Path] = []

    def noted(directory: Path) -> nn.Module:
        built.append(directory)
        return build(directory)

    with pytest.raises(InsufficientMemoryError) as raised:
        load_files(tmp_path, files, noted, dtype=Dtype.FLOAT16, host_peak_bytes=16 * MIB)
    assert f"needs {32 * MIB} bytes" in raised.value.message
    assert f"declared are {16 * MIB} bytes" in raised.value.message
    assert raised.value.permanent
    assert not built, "refused from the headers alone"


def test_a_mapped_load_needs_no_declared_memory(tmp_path: Path):
    load_files(tmp_path, linear_model(), linear, host_peak_bytes=0)


def test_what_build_raises_is_reported_as_the_model_classs(tmp_path: Path):
    def broken(directory: Path) -> nn.Module:
        raise ValueError("no such layer")

    with pytest.raises(BuildFailedError, match="ValueError: no such layer"):
        load_files(tmp_path, linear_model(), broken)


def test_build_must_return_a_module(tmp_path: Path):
    with pytest.raises(BuildFailedError, match="returned dict"):
        load_files(tmp_path, linear_model(), lambda _: {})  # pyright: ignore[reportArgumentType]


def test_cuda_without_a_gpu_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailableError):
        load_files(tmp_path, linear_model(), linear, device=Device.CUDA)


def test_the_report_has_the_shape_of_the_command(tmp_path: Path):
    report = load_files(tmp_path, linear_model(), linear).report.to_json()
    assert list(report["seconds"]) == ["map", "convert", "transfer", "total"]  # pyright: ignore[reportArgumentType]
    assert list(report["memory"]) == ["model_bytes", "peak_anon_bytes", "peak_file_bytes", "gpu_peak_bytes"]  # pyright: ignore[reportArgumentType]


def test_tied_weights_with_a_nan_are_equal_to_their_own_copy(tmp_path: Path):
    values = EMBEDDING.copy()
    values[1, 1] = np.nan
    content = checkpoint_bytes(dict.fromkeys(["embedding.weight", "output.weight"], values))
    module = load_files(tmp_path, {"model.safetensors": content}, lambda _: Tied()).module
    assert module.get_parameter("output.weight").isnan().sum() == 1


def test_tied_weights_of_two_types_are_refused(tmp_path: Path):
    content = checkpoint_bytes({"embedding.weight": EMBEDDING, "output.weight": EMBEDDING.astype(np.float16)})
    with pytest.raises(CheckpointMismatchError, match=r"output\.weight is one with embedding\.weight"):
        load_files(tmp_path, {"model.safetensors": content}, lambda _: Tied())


class TiedBuffers(nn.Module):
    """Two layers with one table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.again = nn.Module(), nn.Module()
        self.table.register_buffer("values", torch.empty(4, 3))
        self.again.register_buffer("values", self.table.get_buffer("values"))


@pytest.mark.parametrize("stored", [["table.values"], ["again.values"], ["table.values", "again.values"]])
def test_tied_buffers_stay_one_tensor_whichever_name_they_are_stored_under(stored: list[str], tmp_path: Path):
    files = {"model.safetensors": checkpoint_bytes(dict.fromkeys(stored, EMBEDDING))}
    loaded = load_files(tmp_path, files, lambda _: TiedBuffers())
    values = loaded.module.get_buffer("again.values")
    assert values is loaded.module.get_buffer("table.values")
    assert not isinstance(values, nn.Parameter)
    assert values.tolist() == EMBEDDING.tolist()


def test_lazy_modules_are_refused_with_the_names_of_what_has_no_shape(tmp_path: Path):
    with pytest.raises(BuildFailedError, match=r"2 tensors that have no shape yet:\n  - weight\n  - bias") as raised:
        load_files(tmp_path, linear_model(), lambda _: nn.LazyLinear(2))
    assert "nn.LazyLinear" in raised.value.hint


@pytest.mark.filterwarnings("ignore")  # torch.jit is on its way out, scripted modules are not
def test_a_scripted_module_takes_its_weights(tmp_path: Path):
    loaded = load_files(tmp_path, linear_model(), lambda _: torch.jit.script(nn.Linear(3, 2)))
    assert loaded.module(torch.tensor([[1.0, 10.0, 100.0]])).tolist() == [[211.0, 544.0]]


def test_a_type_of_the_format_that_torch_does_not_have_is_an_error_with_the_file(tmp_path: Path):
    header = b'{"a": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}'
    content = len(header).to_bytes(8, "little") + header + b"abc"
    directory = write_files(tmp_path / "model", {"odd.safetensors": content})
    with (
        ModelStore(tmp_path / "cache").ensure(f"file://{directory}") as snapshot,
        pytest.raises(UnsupportedCheckpointError, match=r"odd\.safetensors: safetensors can't read it: ") as raised,
    ):
        load(snapshot, build_plain(snapshot), dtype=Dtype.AUTO, device=Device.CPU)
    assert raised.value.permanent


def test_buffers_that_build_gives_a_value_keep_their_type_in_a_conversion(tmp_path: Path):
    def build(directory: Path) -> nn.Module:
        module = nn.Linear(3, 2)
        module.register_buffer("angles", torch.rand(3, device="cpu"), persistent=False)
        return module

    module = load_files(tmp_path, linear_model(), build, dtype=Dtype.BFLOAT16).module
    assert module.get_parameter("weight").dtype is torch.bfloat16
    assert module.get_buffer("angles").dtype is torch.float32, "as load's docstring says: a table stays exact"


def test_buffers_that_build_made_elsewhere_are_moved_and_one_with_two_names_stays_one():
    module = nn.Sequential(nn.Module(), nn.Module(), nn.Module())
    table = torch.ones(3)
    module[0].register_buffer("table", table, persistent=False)
    module[1].register_buffer("table", table, persistent=False)
    there = torch.ones(2, device="meta")
    module[2].register_buffer("there", there)
    # Every machine has the meta device, few have a GPU; a buffer that is there already may not be copied.
    _move_buffers(module, cast("Device", SimpleNamespace(value="cpu")))
    assert module.get_buffer("0.table") is table
    _move_buffers(module, cast("Device", SimpleNamespace(value="meta")))
    assert module.get_buffer("0.table").is_meta
    assert module.get_buffer("0.table") is module.get_buffer("1.table")
    assert module.get_buffer("2.there") is there
