"""The whole documents, so that a reviewer sees what a change does to a cluster. ``make golden`` writes them anew."""

from typing import Any

from syrupy.assertion import SnapshotAssertion

from eks_gpu_serving.planning.capacity import CapacityPlan
from eks_gpu_serving.ray_service import objects
from eks_gpu_serving.settings import StackSettings


def test_ray_service(manifest: dict[str, Any], golden: SnapshotAssertion) -> None:
    assert manifest == golden


def test_objects_around_it(settings: StackSettings, capacity: CapacityPlan, golden: SnapshotAssertion) -> None:
    role = "arn:aws:iam::123456789012:role/models"
    documents = [
        objects.namespace(settings),
        objects.head_service_account(settings),
        objects.worker_service_account(settings, role),
        objects.prefetch_config_map(settings, capacity),
    ]
    assert documents == golden
