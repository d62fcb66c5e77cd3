"""Makes the example's file: one layer with weights from a fixed seed. Needs the package ``onnx``; serving does not."""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx_model.model import KINDS, MEASURES


def make(directory: Path) -> None:
    """Write ``model.onnx`` into ``directory``, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    weights = numpy_helper.from_array(random.standard_normal((MEASURES, len(KINDS))).astype(np.float32), "weights")
    bias = numpy_helper.from_array(random.standard_normal(len(KINDS)).astype(np.float32), "bias")
    nodes = [
        helper.make_node("Gemm", ["measures", "weights", "bias"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    measures = helper.make_tensor_value_info("measures", TensorProto.FLOAT, ["batch", MEASURES])
    answer = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", len(KINDS)])
    graph = helper.make_graph(nodes, "flowers", [measures], [answer], [weights, bias])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, directory / "model.onnx")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
