"""What is written is safetensors with the same values, whatever the layout, the type and the block size."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.loading.rewrite import Rewrite, pack
from ray_model_serving.loading.types import NAMES
from ray_model_serving.store.checkpoint import Checkpoint
from ray_model_serving.store.tensor_headers import TensorHeader, parse_header


class InMemory:
    """Weights that are at hand."""

    mapped = True

    def __init__(self, by_name: Mapping[str, torch.Tensor], aliases: Mapping[str, str] | None = None) -> None:
        headers = {
            name: TensorHeader(
                name=name, dtype=NAMES[t.dtype], shape=tuple(t.shape), size_bytes=t.numel() * t.element_size()
            )
            for name, t in by_name.items()
        }
        self.checkpoint = Checkpoint(tensors=headers, files=dict.fromkeys(by_name, "given"))
        self.aliases = aliases or {}
        self._by_name = by_name

    def tensors(self, names: Sequence[str], device: Device) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, self._by_name[name]) for name in names)


def strided(shape: tuple[int, ...], layout: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of distinct values whose memory is in order, transposed, or every other element."""
    base = torch.arange(2 * max(1, torch.Size(shape).numel()), dtype=torch.float32).to(dtype)
    dense = base[: torch.Size(shape).numel()].reshape(shape)
    if layout == 1 and len(shape) > 1:
        return dense.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == 2 and shape:
        return torch.stack([dense, dense], dim=-1)[..., 0]
    return dense


_DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn])
_TENSORS = st.builds(strided, st.lists(st.integers(0, 7), max_size=4).map(tuple), st.integers(0, 2), _DTYPES)


@given(st.lists(_TENSORS, min_size=1, max_size=4), st.sampled_from(list(Dtype)), st.integers(1, 64))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_layout_is_written_with_its_values(
    tmp_path: Path, given_tensors: list[torch.Tensor], dtype: Dtype, block_bytes: int
):
    tensors = {f"t{number}": tensor for number, tensor in enumerate(given_tensors)}
    rewrite = Rewrite(
        weights=InMemory(tensors), dtype=dtype, shards={"m.safetensors": list(tensors)}, block_bytes=block_bytes
    )
    (tmp_path / "m.safetensors").unlink(missing_ok=True)
    written: list[int] = []
    rewrite.write(tmp_path, written.append, index=False)
    content = (tmp_path / "m.safetensors").read_bytes()
    assert {"m.safetensors": len(content)} == rewrite.file_sizes()
    assert len(parse_header(content, len(content))) == len(tensors)
    assert sum(written) == rewrite.size_bytes
    for name, found in load_file(tmp_path / "m.safetensors").items():
        wanted = tensors[name]
        if dtype is not Dtype.AUTO and wanted.dtype in (torch.float32, torch.float64, torch.bfloat16):
            wanted = wanted.to(getattr(torch, dtype.value))
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert torch.equal(found.double(), wanted.double())


def test_data_begins_at_a_multiple_of_its_element(tmp_path: Path):
    # Mapped in place, a misaligned tensor would be copied or refused.
    tensors = {"a": torch.ones(3, dtype=torch.int8), "b": torch.ones(3, dtype=torch.float64), "c": torch.ones(5).half()}
    Rewrite(weights=InMemory(tensors), dtype=Dtype.AUTO, shards={"m.safetensors": list(tensors)}).write(
        tmp_path, index=False
    )
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        for name in tensors:
            found = file.get_tensor(name)
            assert found.data_ptr() % found.element_size() == 0


@pytest.mark.parametrize(("most", "shards"), [(100, 1), (40, 2), (20, 3), (1, 3)])
def test_shards_stay_below_their_bound_unless_one_tensor_is_larger(most: int, shards: int):
    checkpoint = InMemory({name: torch.zeros(4) for name in "abc"}).checkpoint
    packed = pack(checkpoint, Dtype.AUTO, most)
    assert len(packed) == shards
    assert [name for names in packed.values() for name in names] == list("abc")
    names = (
        ["model.safetensors"]
        if shards == 1
        else [f"model-0000{n}-of-0000{shards}.safetensors" for n in range(1, shards + 1)]
    )
    assert list(packed) == names


def test_the_index_and_the_metadata_tell_where_each_tensor_is(tmp_path: Path):
    tensors = {"a": torch.ones(2), "b": torch.ones(3)}
    weights = InMemory(tensors, {"head": "b"})
    Rewrite(weights=weights, dtype=Dtype.FLOAT16, shards={"1.safetensors": ["a"], "2.safetensors": ["b"]}).write(
        tmp_path, index=True
    )
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index == {"metadata": {"total_size": 10}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    with safe_open(tmp_path / "2.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "head": "b"}
