"""Compile caches are found again by who can use them and by nobody else."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._inductor.runtime.cache_dir_utils import cache_dir

from emulators.models import linear_model
from ray_model_serving.contract.cache_format import CacheLayout
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.loading.compiled import compile_key, compilers, open_compile_cache, processor_of
from ray_model_serving.loading.served import Place, load_served
from ray_model_serving.model import ServedModel
from ray_model_serving.store.locks import open_lock

_TEXTS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)


@given(_TEXTS, _TEXTS, st.text(max_size=5))
def test_the_key_does_not_depend_on_order_and_is_a_directory_name(gpu, versions, snapshot_id):
    key = compile_key(gpu, versions, snapshot_id)
    assert key == compile_key(dict(reversed(gpu.items())), dict(reversed(versions.items())), snapshot_id)
    assert len(key) == 32
    assert key.isalnum()


def test_another_gpu_compiler_or_model_has_another_key():
    given_parts = ({"gpu": "L4", "capability": "8.9"}, {"torch": "2.13.0"}, "a" * 32)
    keys = {
        compile_key(*given_parts),
        compile_key({"gpu": "T4", "capability": "7.5"}, *given_parts[1:]),
        compile_key(given_parts[0], {"torch": "2.14.0"}, given_parts[2]),
        compile_key(given_parts[0], {"torch": "2.13.0", "triton": "3.5"}, given_parts[2]),
        compile_key(*given_parts[:2], "b" * 32),
    }
    assert len(keys) == 5


def test_the_key_is_made_of_what_is_here(monkeypatch: pytest.MonkeyPatch):
    assert compilers()["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert processor_of(Device.CPU)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA L4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    assert processor_of(Device.CUDA) == {"gpu": "NVIDIA L4", "capability": "8.9"}


class Noted(ServedModel):
    """Notes where compilers would keep their work when it is built."""

    seen: str

    def build(self, directory: Path) -> nn.Module:
        self.seen = cache_dir()
        return nn.Linear(3, 2)

    def warm_up(self) -> None: ...

    def predict_batch(self, inputs):
        return inputs


def test_the_compilers_know_the_directory_before_the_model_is_built(layout: CacheLayout, new_snapshot):
    served, place = Noted(), Place(device=Device.CPU, layout=layout, keep_converted=True)
    loaded = load_served(served, new_snapshot(linear_model()), place=place, dtype=Dtype.FLOAT16)
    assert loaded.compiled
    assert Path(served.seen) == loaded.compiled.path / "inductor"
    assert loaded.compiled.path.parent == layout.compiled
    assert Path(os.environ["TRITON_CACHE_DIR"]).is_dir()
    assert served.module.get_parameter("weight").dtype is torch.float16
    assert loaded.copy
    other = open_lock(layout.lock(f"compiled-{loaded.compiled.path.name}"))
    assert not other.try_exclusive(), "what is in use is not evicted"
    loaded.close()
    assert other.try_exclusive()
    other.release()


def test_without_a_cache_nothing_is_set(layout: CacheLayout, new_snapshot):
    served = Noted()
    loaded = load_served(served, new_snapshot(linear_model()), place=Place(device=Device.CPU), dtype=Dtype.AUTO)
    assert (loaded.compiled, loaded.copy) == (None, None)
    assert not Path(served.seen).is_relative_to(layout.root)


def test_what_a_user_set_stays(layout: CacheLayout, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    found = open_compile_cache(layout, "a" * 32)
    assert found
    found.close()
    assert os.environ["TRITON_CACHE_DIR"] == "/mine"


def test_a_cache_that_can_not_be_written_to_is_no_reason_to_fail(layout: CacheLayout, caplog: pytest.LogCaptureFixture):
    layout.compiled.write_text("in the way")
    assert open_compile_cache(layout, "a" * 32) is None
    assert "no compile cache" in caplog.text
    assert "TRITON_CACHE_DIR" not in os.environ
