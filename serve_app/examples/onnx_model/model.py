"""A classifier that ONNX Runtime runs: four measures of a flower in, the probability of each kind out."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ray_model_serving.onnx_model import ServedOnnxModel

KINDS = ("setosa", "versicolor", "virginica")
MEASURES = 4


class FlowerKind(ServedOnnxModel):
    """No ``build``: the library makes the session from the only ``.onnx`` file of the model."""

    def warm_up(self) -> None:
        self.predict_batch([[0.0] * MEASURES] * self.max_batch_size)

    def predict_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        (probabilities,) = self.session.run(["probabilities"], {"measures": np.array(inputs, dtype=np.float32)})
        return [dict(zip(KINDS, row, strict=True)) for row in np.asarray(probabilities).tolist()]

    def problem_with(self, value: Any) -> str | None:
        if not isinstance(value, list) or len(value) != MEASURES:
            return f"must be a list of {MEASURES} numbers"
        numbers = all(isinstance(item, int | float) and not isinstance(item, bool) for item in value)
        return None if numbers and all(abs(item) <= 1e6 for item in value) else "must be numbers up to 1e6"

    def example_inputs(self) -> Sequence[Any]:
        return [[5.1, 3.5, 1.4, 0.2]]
