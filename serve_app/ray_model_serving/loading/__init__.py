"""Snapshot to model on a device, within a memory budget: mapped where the type fits, else one tensor at a time."""

from ray_model_serving.loading.converted import ConvertedCopies
from ray_model_serving.loading.loader import load
from ray_model_serving.loading.report import LoadedModel, LoadReport

__all__ = ["load", "LoadedModel", "LoadReport", "ConvertedCopies"]
