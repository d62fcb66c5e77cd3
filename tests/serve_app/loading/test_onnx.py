"""ONNX models behind the same class, checks and report: real files, real sessions on the CPU."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from emulators.models import write_files
from ray_model_serving.contract.cache_format import CacheLayout
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.loading import onnx_session
from ray_model_serving.loading.errors import (
    BuildFailedError,
    DeviceUnavailableError,
    InsufficientMemoryError,
    UnsupportedCheckpointError,
)
from ray_model_serving.loading.onnx_file import external_files
from ray_model_serving.loading.onnx_session import LoadedSession, choose_providers, load_session, session_options
from ray_model_serving.loading.served import Place, load_served
from ray_model_serving.onnx_model import ServedOnnxModel
from ray_model_serving.store import ModelStore, Snapshot
from ray_model_serving.store.errors import InvalidModelFileError, NoWeightsError

MIB = 1024**2


def matrices(side: int = 2, layers: int = 1) -> onnx.ModelProto:
    """``x @ w0 @ w1 ...``"""
    weights = [np.full((side, side), number + 2, dtype=np.float32) for number in range(layers)]
    names = [f"x{number}" for number in range(layers + 1)]
    nodes = [helper.make_node("MatMul", [names[n], f"w{n}"], [names[n + 1]]) for n in range(layers)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", side]) for name in (names[0], names[-1])]
    initializers = [numpy_helper.from_array(weight, f"w{n}") for n, weight in enumerate(weights)]
    graph = helper.make_graph(nodes, "matrices", ends[:1], ends[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def save(model: onnx.ModelProto, path: Path, location: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path, save_as_external_data=location is not None, location=location, size_threshold=0)
    return path.parent


def snapshot_of(directory: Path) -> Snapshot:
    return ModelStore(directory / "cache").ensure(f"file://{directory}", exclude=("*.md",))


def load_from(directory: Path, **options: Any) -> LoadedSession:
    with snapshot_of(directory) as snapshot:
        return load_session(snapshot, device=Device.CPU, **options)


@pytest.mark.parametrize("location", [None, "weights.bin"])
def test_a_session_computes_what_its_file_says(location: str | None, tmp_path: Path):
    loaded = load_from(save(matrices(layers=2), tmp_path / "model" / "m.onnx", location))
    (answer,) = loaded.session.run(None, {"x0": np.array([[1, 10]], dtype=np.float32)})
    assert np.asarray(answer).tolist() == [[132.0, 132.0]]
    report = loaded.report.to_json()
    assert report["seconds"]["map"] > 0  # pyright: ignore[reportIndexIssue]
    assert loaded.report.model_bytes == sum(
        path.stat().st_size for path in (tmp_path / "model").iterdir() if path.is_file()
    )


def test_external_weights_are_mapped_and_take_no_anonymous_memory(tmp_path: Path):
    loaded = load_from(save(matrices(2048, 4), tmp_path / "model" / "m.onnx", "m.data"), host_peak_bytes=MIB)
    assert loaded.report.model_bytes > 64 * MIB
    assert loaded.report.peak_anon_bytes < 0.15 * loaded.report.model_bytes, "replicas share the file's pages"
    loaded.session.run(None, {"x0": np.ones((1, 2048), np.float32)})
    assert str(tmp_path / "model" / "m.data") in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(("location", "prepack"), [(None, False), (None, True), ("m.data", True)])
def test_memory_stays_below_what_the_check_asked_for(location: str | None, prepack: bool, tmp_path: Path):
    directory = save(matrices(2048, 4), tmp_path / "model" / "m.onnx", location)
    with pytest.raises(InsufficientMemoryError, match="an ONNX session on cpu needs") as raised:
        load_from(directory, prepack=prepack, host_peak_bytes=MIB)
    needed_bytes = int(raised.value.message.split(" needs ")[1].split()[0])
    assert load_from(directory, prepack=prepack).report.peak_anon_bytes <= needed_bytes + 4 * MIB


def nested() -> onnx.ModelProto:
    """Weights in both branches of an If, and as an attribute."""
    branches = []
    for number in range(2):
        weight = numpy_helper.from_array(np.ones(4, np.float32), f"w{number}")
        out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
        node = helper.make_node("Identity", [f"w{number}"], ["y"])
        branches.append(helper.make_graph([node], "branch", [], [out], [weight]))
    constant = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.ones(4, np.float32), "c"))
    choice = helper.make_node("If", ["flag"], ["z"], then_branch=branches[0], else_branch=branches[1])
    total = helper.make_node("Add", ["z", "k"], ["sum"])
    inputs = [helper.make_tensor_value_info("flag", TensorProto.BOOL, [])]
    outputs = [helper.make_tensor_value_info("sum", TensorProto.FLOAT, [4])]
    graph = helper.make_graph([constant, choice, total], "nested", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_external_files_are_found_in_branches_too(tmp_path: Path):
    model = nested()
    tensors = [node.attribute[0].g.initializer[0] for node in model.graph.node if node.op_type == "If"]
    other = [a.g for node in model.graph.node if node.op_type == "If" for a in node.attribute]
    for number, graph in enumerate(other):
        set_external_data(graph.initializer[0], f"{number}.data")
    assert tensors
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert external_files(tmp_path / "m.onnx") == {"0.data", "1.data"}
    (tmp_path / "plain.onnx").write_bytes(nested().SerializeToString())
    assert external_files(tmp_path / "plain.onnx") == frozenset()


@pytest.mark.parametrize("location", ["../m.data", "/etc/passwd", "a/../../x"])
def test_weights_outside_the_model_are_refused(location: str, tmp_path: Path):
    model = matrices()
    set_external_data(model.graph.initializer[0], location)
    write_files(tmp_path / "model", {"m.onnx": model.SerializeToString()})
    with pytest.raises(InvalidModelFileError, match="not below the model's directory"):
        load_from(tmp_path / "model")


def test_missing_external_files_are_named_before_a_session_is_made(tmp_path: Path):
    directory = save(matrices(), tmp_path / "model" / "onnx" / "m.onnx", "m.data")
    (directory / "m.data").unlink()
    with pytest.raises(InvalidModelFileError, match=r"not among the model's: onnx/m\.data"):
        load_from(tmp_path / "model")


@given(st.binary(min_size=1, max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_other_bytes_are_refused_or_have_no_external_files(content: bytes):
    path = Mock()
    path.stat.return_value.st_size = len(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray_model_serving.loading.onnx_file.mmap.mmap", lambda *_, **__: memoryview(content))  # pyright: ignore[reportUnknownLambdaType]
        path.open.return_value.__enter__ = Mock()
        path.open.return_value.__exit__ = Mock(return_value=False)
        with contextlib.suppress(InvalidModelFileError):
            assert isinstance(external_files(path), frozenset)


def test_a_cut_file_and_a_graph_that_makes_no_sense(tmp_path: Path):
    content = matrices(64).SerializeToString()
    with pytest.raises(InvalidModelFileError, match="cut or not an ONNX file"):
        load_from(write_files(tmp_path / "cut", {"m.onnx": content[:-5000]}))
    model = matrices()
    model.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(BuildFailedError, match="NoSuchOperator"):
        load_from(write_files(tmp_path / "odd", {"m.onnx": model.SerializeToString()}))


def test_which_file_is_meant_must_be_clear(tmp_path: Path):
    content = matrices().SerializeToString()
    directory = write_files(tmp_path / "model", {"a.onnx": content, "b.onnx": content})
    with pytest.raises(InvalidModelFileError, match=r"a\.onnx, b\.onnx"):
        load_from(directory)
    assert load_from(directory, file="b.onnx").session
    with pytest.raises(NoWeightsError) as raised:
        load_from(write_files(tmp_path / "none", {"config.json": b"{}"}))
    assert "exclude" in raised.value.hint


def test_another_type_than_the_files_is_refused(tmp_path: Path):
    with pytest.raises(UnsupportedCheckpointError, match="float16"):
        load_from(save(matrices(), tmp_path / "model" / "m.onnx"), dtype=Dtype.FLOAT16)


def test_threads_are_bounded_and_do_not_spin():
    options = session_options(3, prepack=False)
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 1)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert session_options(0, prepack=False).intra_op_num_threads == 1, "0 would be one for each CPU of the node"


GPU = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]


def test_tensorrt_comes_first_where_it_is_and_keeps_its_engines_in_the_cache(tmp_path: Path):
    names = [name for name, _ in choose_providers(GPU, Device.CUDA, tmp_path)]
    assert names == GPU
    assert choose_providers(GPU, Device.CUDA, tmp_path)[0][1]["trt_engine_cache_path"] == str(tmp_path)
    assert [name for name, _ in choose_providers(GPU[1:], Device.CUDA, tmp_path)] == GPU[1:]
    assert choose_providers(GPU, Device.CPU, None) == [("CPUExecutionProvider", {})]


def test_a_gpu_that_onnx_runtime_can_not_use_is_an_error_and_never_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    directory = save(matrices(), tmp_path / "model" / "m.onnx")
    with snapshot_of(directory) as snapshot, pytest.raises(DeviceUnavailableError, match="onnxruntime-gpu"):
        load_session(snapshot, device=Device.CUDA)
    monkeypatch.setattr(onnxruntime, "get_available_providers", Mock(return_value=GPU))
    fallen_back = Mock()
    fallen_back.return_value.get_providers.return_value = ["CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "InferenceSession", fallen_back)
    with snapshot_of(directory) as snapshot, pytest.raises(DeviceUnavailableError, match="fell back to CPU"):
        load_session(snapshot, device=Device.CUDA)


def test_weights_that_the_gpu_has_no_room_for_are_refused_before_a_session_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    directory = save(matrices(), tmp_path / "model" / "m.onnx", "weights.bin")
    made = Mock()
    made.return_value.get_providers.return_value = GPU
    monkeypatch.setattr(onnxruntime, "InferenceSession", made)
    monkeypatch.setattr(onnxruntime, "get_available_providers", Mock(return_value=GPU))
    monkeypatch.setattr(torch.cuda, "is_available", Mock(return_value=True))
    monkeypatch.setattr(torch.cuda, "mem_get_info", Mock(return_value=(15, 1000)))
    with snapshot_of(directory) as snapshot:
        with pytest.raises(InsufficientMemoryError, match="15 of 1000 bytes are free"):
            load_session(snapshot, device=Device.CUDA)
        assert not made.called
        monkeypatch.setattr(torch.cuda, "mem_get_info", Mock(return_value=(MIB, MIB)))
        load_session(snapshot, device=Device.CUDA)
        assert made.called


def test_on_a_network_file_system_onnx_weights_are_read_in_large_pieces_before_they_are_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    # UR-088
    directory = save(matrices(), tmp_path / "model" / "m.onnx", "weights.bin")
    read = Mock(wraps=onnx_session.read_through)
    monkeypatch.setattr(onnx_session, "read_through", read)
    load_from(directory)
    assert not read.called, "on a local disk the mapping alone is faster"
    monkeypatch.setattr(onnx_session, "network_type", Mock(return_value="nfs4"))
    assert load_from(directory).report.model_bytes > 0
    assert [call.args[0].name for call in read.call_args_list] == ["m.onnx", "weights.bin"]
    assert "is on nfs4" in caplog.text


class Doubles(ServedOnnxModel):
    def prepare(self, directory: Path) -> None:
        self.scale = float((directory / "scale.txt").read_text())

    def warm_up(self) -> None:
        self.predict_batch([[0.0, 0.0]])

    def predict_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        (answers,) = self.session.run(None, {"x0": np.array(inputs, dtype=np.float32) * self.scale})
        return np.asarray(answers).tolist()


def test_a_model_class_says_that_it_is_onnx_by_its_base(tmp_path: Path):
    directory = save(matrices(), tmp_path / "model" / "m.onnx")
    write_files(directory, {"scale.txt": b"10"})
    served, layout = Doubles(), CacheLayout(tmp_path / "cache")
    with snapshot_of(directory) as snapshot:
        loaded = load_served(served, snapshot, place=Place(device=Device.CPU, layout=layout), dtype=Dtype.AUTO)
    served.warm_up()
    assert served.predict_batch([[1.0, 2.0]]) == [[60.0, 60.0]]
    assert loaded.report.model_bytes > 0
    assert len(list(layout.compiled.iterdir())) == 1
    loaded.close()
    with pytest.raises(TypeError, match="has a session and no module"):
        served.build(directory)
