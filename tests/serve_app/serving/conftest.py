"""Settings for the tests of the serving side."""

from typing import Any

import pytest


@pytest.fixture
def make_args():
    """ServingSettings in plain form: one small CPU model, with what a test changes in it."""

    def make(*models: dict[str, Any], **changes: Any) -> dict[str, Any]:
        return {
            "models": [{**MODEL, **model} for model in models or ({},)],
            "cache_root": "/model-cache",
            "cache_budget_bytes": 1024**3,
            "cache_medium": "directory",
            "load_deadline_s": 60,
            **changes,
        }

    return make


MODEL = {
    "name": "embed",
    "route": "/embed",
    "model_class": "ray_model_serving.models.text_embedding:TextEmbedding",
    "uri": "s3://models/minilm/",
    "device": "cpu",
    "weights_bytes": 90_868_376,
    "host_peak_bytes": 64 * 1024**2,
}
