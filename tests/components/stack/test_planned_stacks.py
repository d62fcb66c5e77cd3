"""Whatever the plan accepts, the components accept: a refusal in the middle of an update leaves half a stack."""

from collections.abc import Callable
from typing import Any

import pytest

from eks_gpu_serving.planning.instances import instance_problem, instance_types
from eks_gpu_serving.planning.plan import plan
from eks_gpu_serving.settings import StackSettings
from harness import Graph, run
from harness.properties import violations

LONGEST = "a" * 27
KEY = "arn:aws:kms:us-east-1:123456789012:key/0a1b2c3d-0000-0000-0000-000000000000"
SUBNETS = ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"]
STACKS: dict[str, dict[str, Any]] = {
    "the small one": {},
    "the longest name": {"name": LONGEST},
    "a pool called cluster": {"pool": {"name": "cluster"}},
    "a pool called models": {"pool": {"name": "models"}},
    "a pool called cluster-system": {"pool": {"name": "cluster-system"}},
    "a long pool": {"name": "a", "pool": {"name": "p" * 32}},
    "an existing cluster": {"cluster": {"existing_name": "Shared_1-a"}},
    "an existing cluster with subnets": {"cluster": {"existing_name": "shared", "private_subnet_ids": SUBNETS}},
    "a network of ones own": {"cluster": {"vpc_id": "vpc-0123456789abcdef0", "private_subnet_ids": SUBNETS}},
    "a private API": {"cluster": {"endpoint_public_access": False}},
    "a guarded API": {"cluster": {"public_access_cidrs": ["192.0.2.0/24", "198.51.100.7/32"]}},
    "large system nodes": {"cluster": {"system_instance_type": "m7i.4xlarge", "system_nodes": 20}},
    "an image of ones own": {"pool": {"ami_id": "ami-01234567"}},
    "an image of ones own for a type without one": {
        "pool": {"instance_type": "g7.2xlarge", "ami_id": "ami-0123456789abcdef0"}
    },
    "a pinned release on spot": {"pool": {"ami_release_version": "1.35.0-20260520", "capacity_type": "spot"}},
    "the largest volume": {"pool": {"operating_system": "bottlerocket", "root_volume_gib": 16_384}},
    "the smallest volume": {"pool": {"root_volume_gib": 20}},
    "the most nodes": {"pool": {"min_nodes": 450, "max_nodes": 450}},
    "models on disk": {"model": {"uri": "file:///opt/models/embedding/"}},
    "models on the CPU": {"model": {"device": "cpu", "num_gpus": 0}},
    "encrypted buckets": {"models_kms_key_arns": [KEY]},
    "another partition": {"region": "cn-north-1"},
    "strange names in a bucket": {"model": {"uri": "s3://models/a*b?$c/v 1/"}},
    "the most tags": {"tags": {f"k{n}": "v" * 256 for n in range(40)}},
    "definitions of ones own": {"kuberay": {"crd_source": "/opt/crds", "chart_version": "1.7.0"}},
    "variants, copies and caps": {
        "model": {
            "dtype": "bfloat16",
            "variants": [{"name": "a", "uri": "s3://other/a/"}, {"name": "b", "uri": "file:///opt/b/"}],
            "resident_gib": 2,
        },
        "serving": {"rate_cap_mib_per_s": 1, "trace_endpoint": "http://collector:4318"},
    },
    "no replica at rest": {"model": {"min_replicas": 0}},
}


@pytest.mark.parametrize("name", STACKS)
def test_what_is_planned_is_made(name: str, small_stack: Any, builder: Callable[..., Any]) -> None:
    mapping = small_stack(**STACKS[name])
    settings = StackSettings.from_mapping(mapping)
    capacity = plan(settings)
    found = run(lambda: builder(mapping, settings.service_name), preview=True)
    assert isinstance(found, Graph)
    assert len(found.of_type("eks-gpu-serving:index:GpuNodeGroup")) == len(capacity.pools)
    assert violations(found) == []


@pytest.mark.parametrize("system", ["al2023", "bottlerocket"])
def test_every_instance_type_that_is_planned_is_made(
    system: str, small_stack: Any, builder: Callable[..., Any]
) -> None:
    # One name of each family and architecture: what a group is made of differs by these.
    types = {(row.family, row.arch): name for name, row in instance_types().items() if not instance_problem(name)}
    for name in sorted(types.values()):
        pool = {"instance_type": name, "operating_system": system, "ami_id": "ami-0123456789abcdef0"}
        if instance_types()[name].ami_type_al2023 != "CUSTOM":
            del pool["ami_id"]
        mapping = small_stack(pool=pool, model={"weights_gib": 0.1})
        settings = StackSettings.from_mapping(mapping)
        plan(settings)
        graph = run(lambda mapping=mapping: builder(mapping, "serving"), preview=True)
        assert graph.of_type("eks-gpu-serving:index:GpuNodeGroup")


def test_the_same_keys_are_refused_by_the_settings_and_by_the_cluster() -> None:
    from eks_gpu_serving.cluster_args import ServingClusterArgs, problems

    given: dict[str, Any] = {
        "kubernetes_version": "1.35",
        "vpc_id": "vpc-0123456789abcdef0",
        "public_access_cidrs": ["192.0.2.0/24"],
        "system_instance_type": "m7i.xlarge",
        "system_nodes": 2,
    }
    args = ServingClusterArgs(region="us-east-1", existing_name="shared", enable_public_endpoint=True, **given)
    by_component = {name.replace("enable_public_endpoint", "endpoint_public_access") for name, _ in problems("c", args)}
    assert by_component == {*given, "endpoint_public_access"}
