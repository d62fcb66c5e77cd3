"""Stacks that the renderers are tried on: the three of this checkout, and one with several pools and models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from eks_gpu_serving.planning.capacity import CapacityPlan
from eks_gpu_serving.planning.plan import plan
from eks_gpu_serving.ray_service.manifest import ray_service
from eks_gpu_serving.ray_service.serve_config import serve_config
from eks_gpu_serving.settings import StackSettings
from eks_gpu_serving.stack_files import load_stack

CHECKOUT = Path(__file__).parents[3]
ROLE = "arn:aws:iam::123456789012:role/models"

SEVERAL: dict[str, Any] = {
    "environment": "prod",
    "region": "eu-west-1",
    "node_groups": [
        {"name": "l40s", "instance_type": "g6e.12xlarge", "min_nodes": 1, "max_nodes": 4},
        {
            "name": "l4",
            "instance_type": "g6.2xlarge",
            "operating_system": "bottlerocket",
            "min_nodes": 1,
            "max_nodes": 8,
        },
    ],
    "models": [
        {
            "name": "chat",
            "route": "/chat",
            "model_class": "models.chat:Chat",
            "uri": "s3://models/chat/v3/",
            "snapshot_id": "0123456789abcdef0123456789abcdef",
            "node_group": "l40s",
            "weights_gib": 16.0,
            "num_gpus": 2,
            "num_cpus": 4,
            "min_replicas": 1,
            "max_replicas": 3,
        },
        {
            "name": "embed",
            "route": "/embed",
            "model_class": "models.embed:Embed",
            "uri": "s3://models/embed/v1/",
            "snapshot_id": "fedcba9876543210fedcba9876543210",
            "node_group": "l4",
            "weights_gib": 0.5,
            "dtype": "float16",
            "variants": [
                {
                    "name": "german",
                    "uri": "s3://models/embed-de/v2/",
                    "snapshot_id": "00112233445566778899aabbccddeeff",
                },
                {"name": "baked", "uri": "file:///opt/models/embed-baked/"},
            ],
            "resident_gib": 1.0,
            "num_gpus": 0.5,
            "min_replicas": 2,
            "max_replicas": 6,
        },
        {
            "name": "rank",
            "route": "/rank",
            "model_class": "models.rank:Rank",
            "uri": "file:///opt/models/rank/",
            "node_group": "l4",
            "weights_gib": 1.0,
            "num_gpus": 0.5,
            "min_replicas": 1,
            "max_replicas": 2,
        },
    ],
    "ray": {"image": "registry.example/serving:1.0.0-ray2.60.0", "upgrade": "new_cluster"},
}


def stack(name: str) -> StackSettings:
    """A stack of the checkout by name, or ``several``."""
    return StackSettings.from_mapping(SEVERAL) if name == "several" else load_stack(name, CHECKOUT)


@pytest.fixture(params=["dev", "staging", "prod", "several"])
def settings(request: pytest.FixtureRequest) -> StackSettings:
    """Each stack in turn."""
    return stack(request.param)


@pytest.fixture
def capacity(settings: StackSettings) -> CapacityPlan:
    """The plan of the stack."""
    return plan(settings)


@pytest.fixture
def manifest(settings: StackSettings, capacity: CapacityPlan) -> dict[str, Any]:
    """The RayService of the stack, as ``gpu-serving render`` would show it."""
    return ray_service(settings, capacity, serve_config(settings, capacity, model_role_arn=ROLE))


@pytest.fixture
def several() -> Callable[..., StackSettings]:
    """The stack with several models; keyword arguments change the first model."""

    def build(**first_model: Any) -> StackSettings:
        mapping = yaml.safe_load(yaml.safe_dump(SEVERAL))
        mapping["models"][0].update(first_model)
        return StackSettings.from_mapping(mapping)

    return build


class _YamlFile(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    file_extension = "yaml"

    def serialize(self, data: Any, **_: Any) -> str:
        """Multi-line texts as blocks, so that a diff shows the line that changed."""
        return yaml.dump(data, Dumper=_Blocks, sort_keys=False, width=120)


class _Blocks(yaml.SafeDumper):
    pass


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Blocks.add_representer(str, _text)


@pytest.fixture
def golden(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    """One YAML file a test, under ``__snapshots__``; ``make golden`` writes them anew."""
    return snapshot.use_extension(_YamlFile)
