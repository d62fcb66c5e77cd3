"""The ``ray-model`` command."""

from ray_model_serving.cli.app import main

__all__ = ["main"]
