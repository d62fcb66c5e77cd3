"""A small valid stack that tests change one key of."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

_SMALL_STACK: dict[str, Any] = {
    "environment": "dev",
    "region": "us-east-1",
    "node_groups": [{"name": "l4", "instance_type": "g6.xlarge", "max_nodes": 1}],
    "models": [
        {
            "name": "embedding",
            "route": "/embed",
            "model_class": "package.module:Model",
            "uri": "s3://models/embedding/",
            "weights_gib": 1.0,
        }
    ],
    "ray": {"image": "registry.example/serving:1.0.0-ray2.60.0", "upgrade": "none"},
}


@pytest.fixture
def small_stack() -> Callable[..., dict[str, Any]]:
    """Builds the small stack; keyword arguments are merged into its first pool, first model, ray or top level."""

    def build(
        *,
        pool: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
        ray: dict[str, Any] | None = None,
        **top: Any,
    ) -> dict[str, Any]:
        mapping = copy.deepcopy(_SMALL_STACK)
        mapping["node_groups"][0].update(pool or {})
        mapping["models"][0].update(model or {})
        mapping["ray"].update(ray or {})
        mapping.update(top)
        return mapping

    return build
