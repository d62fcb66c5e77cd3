"""Object store to immutable snapshot directory on the node: one download per node, verified, or a typed error.

No torch and no ray in here; boto3 is imported when a model first comes from ``s3://``.
"""

from ray_model_serving.store.model_store import ModelStore
from ray_model_serving.store.report import FetchProgress, FetchReport, Snapshot

__all__ = ["ModelStore", "Snapshot", "FetchReport", "FetchProgress"]
