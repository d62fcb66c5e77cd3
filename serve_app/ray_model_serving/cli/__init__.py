"""The ``ray-model`` command."""

from ray_model_serving.cli.entry import main

__all__ = ["main"]
