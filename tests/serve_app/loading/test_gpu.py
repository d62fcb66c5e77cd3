"""What a load does to a GPU, with torch's CUDA functions replaced: there is no device here."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from emulators.models import linear_model, write_files
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.loading import LoadedModel, load
from ray_model_serving.loading.errors import InsufficientMemoryError
from ray_model_serving.loading.weights import SafetensorsWeights
from ray_model_serving.store import ModelStore


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A device with 100 of 1000 bytes free, which notes what it is asked in order."""
    device = Mock()
    device.is_available.return_value = True
    device.mem_get_info.return_value = (100, 1000)
    device.max_memory_allocated.return_value = 777
    for name in ("is_available", "mem_get_info", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, getattr(device, name))
    for name in ("set_per_process_memory_fraction", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, getattr(device, name))
    read = SafetensorsWeights.tensors

    def tensors(self: SafetensorsWeights, names: Sequence[str], where: Device) -> Iterator[tuple[str, torch.Tensor]]:
        device.allocate(where)
        return read(self, names, Device.CPU)

    monkeypatch.setattr(SafetensorsWeights, "tensors", tensors)
    return device


def load_linear(tmp_path: Path, device: Device, fraction: float | None = None) -> LoadedModel:
    directory = write_files(tmp_path / "model", linear_model())
    with ModelStore(tmp_path / "cache").ensure(f"file://{directory}") as snapshot:
        build = Mock(side_effect=lambda _: nn.Linear(3, 2))  # pyright: ignore[reportUnknownLambdaType]
        return load(snapshot, build, dtype=Dtype.AUTO, device=device, gpu_fraction=fraction)


def test_the_peak_on_the_gpu_is_reported_and_is_0_without_one(tmp_path: Path, cuda: Mock):
    report = load_linear(tmp_path, Device.CUDA).report
    assert report.gpu_peak_bytes == 777
    assert report.to_json()["memory"]["gpu_peak_bytes"] == 777  # pyright: ignore[reportIndexIssue]
    assert load_linear(tmp_path, Device.CPU).report.gpu_peak_bytes == 0
    assert cuda.max_memory_allocated.call_count == 1, "a CPU model does not start CUDA"


def test_a_share_of_a_gpu_is_held_to_before_the_first_allocation(tmp_path: Path, cuda: Mock):
    # UR-010
    load_linear(tmp_path, Device.CUDA, 0.5)
    names = [name for name, _, _ in cuda.mock_calls]
    cuda.set_per_process_memory_fraction.assert_called_once_with(0.5)
    assert names.index("set_per_process_memory_fraction") < names.index("allocate")


@pytest.mark.parametrize("fraction", [None, 1.0])
def test_a_whole_gpu_is_not_capped(fraction: float | None, tmp_path: Path, cuda: Mock):
    load_linear(tmp_path, Device.CUDA, fraction)
    cuda.set_per_process_memory_fraction.assert_not_called()


def test_a_gpu_that_is_too_full_is_an_error_with_both_numbers_before_a_weight_is_read(tmp_path: Path, cuda: Mock):
    cuda.mem_get_info.return_value = (31, 1000)
    with pytest.raises(InsufficientMemoryError, match="need 32 bytes on the GPU, 31 of 1000 bytes are free"):
        load_linear(tmp_path, Device.CUDA)
    cuda.allocate.assert_not_called()
