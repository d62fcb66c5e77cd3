"""Node groups that can't work are refused, with a way out (UR-064, UR-066)."""

from typing import Any

import pytest

from eks_gpu_serving.nodes.checks import image_problems, size_problems, volume_problems
from eks_gpu_serving.nodes.names import OperatingSystem
from eks_gpu_serving.nodes.operating_systems import OPERATING_SYSTEMS, stock_ami_type
from eks_gpu_serving.planning.instances import instance_types

AL2023, BOTTLEROCKET = OperatingSystem.AL2023, OperatingSystem.BOTTLEROCKET
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown type": ({"instance_type": "g6.xlrage"}, "instance_type", "did you mean 'g6.xlarge'?"),
    "no gpu": ({"instance_type": "g6f.xlarge"}, "instance_type", "no whole GPU"),
    "no nvme": ({"instance_type": "g5g.xlarge"}, "instance_type", "no NVMe instance store"),
    "type and id": (
        {"ami_type": "AL2023_x86_64_NVIDIA", "ami_id": "ami-0123456789abcdef0"},
        "ami_type",
        "one of the two",
    ),
    "release and id": (
        {"ami_id": "ami-0123456789abcdef0", "ami_release_version": "1.35.0-1"},
        "ami_release_version",
        "excludes",
    ),
    "not an id": ({"ami_id": "latest"}, "ami_id", "looks like ami-"),
    "AL2": ({"ami_type": "AL2_x86_64_GPU"}, "ami_type", "no longer published; use AL2023_x86_64_NVIDIA"),
    "no driver": ({"ami_type": "AL2023_x86_64_STANDARD"}, "ami_type", "did you mean 'AL2023_x86_64_NVIDIA'?"),
    "other architecture": ({"ami_type": "AL2023_ARM_64_NVIDIA"}, "ami_type", "valid: AL2023_x86_64_NVIDIA"),
    "other system": ({"ami_type": "BOTTLEROCKET_x86_64_NVIDIA"}, "ami_type", "does not fit al2023"),
    "AL2023 on Bottlerocket": (
        {"operating_system": BOTTLEROCKET, "ami_type": "AL2023_x86_64_NVIDIA"},
        "ami_type",
        "does not fit bottlerocket",
    ),
    "driver too old": ({"instance_type": "g7.2xlarge"}, "ami_id", "needs NVIDIA driver >=595"),
    "no Bottlerocket image": (
        {"instance_type": "g7.2xlarge", "operating_system": BOTTLEROCKET},
        "ami_id",
        "no bottlerocket",
    ),
}


def with_defaults(given: dict[str, Any]) -> dict[str, Any]:
    return {"instance_type": "g6.xlarge", "operating_system": AL2023, **given}


@pytest.mark.parametrize("case", REFUSED)
def test_an_image_that_does_not_fit_is_refused(case: str) -> None:
    given, field, text = REFUSED[case]

    problems = image_problems(**with_defaults(given))

    assert [name for name, _ in problems] == [field]
    assert text in problems[0][1]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"operating_system": BOTTLEROCKET},
        {"operating_system": BOTTLEROCKET, "ami_type": "BOTTLEROCKET_x86_64_NVIDIA_FIPS"},
        {"ami_type": "AL2023_x86_64_NVIDIA", "ami_release_version": "1.35.0-20260520"},
        {"ami_id": "ami-0123456789abcdef0"},
        {"instance_type": "g7.2xlarge", "ami_id": "ami-0123456789abcdef0"},
    ],
)
def test_an_image_that_fits_is_accepted(given: dict[str, Any]) -> None:
    assert image_problems(**with_defaults(given)) == []


def test_all_problems_come_at_once() -> None:
    problems = image_problems(
        instance_type="m5.large",
        operating_system=AL2023,
        ami_type="AL2_x86_64",
        ami_id="ami-1",
        ami_release_version="1",
    )

    assert [name for name, _ in problems] == ["instance_type", "ami_type", "ami_id", "ami_release_version"]


def test_the_default_image_always_fits_the_type_and_the_system() -> None:
    for instance in instance_types().values():
        for system, facts in OPERATING_SYSTEMS.items():
            stock = stock_ami_type(system, instance)
            if stock is None:
                assert instance.family == "g7", f"{instance.name} has an image by {system.value}'s column"
                continue
            assert stock in facts.ami_types[instance.arch]
            assert stock.endswith("NVIDIA"), "without the driver a node joins and offers no GPU"
            assert stock.startswith(system.name)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"max_nodes": 0}, "max_nodes"),
        ({"max_nodes": 451}, "max_nodes"),
        ({"min_nodes": -1}, "min_nodes"),
        ({"min_nodes": 5}, "min_nodes"),
        ({"desired_nodes": 5}, "desired_nodes"),
        ({"min_nodes": 2, "desired_nodes": 1}, "desired_nodes"),
    ],
)
def test_bounds_that_contradict_each_other_are_refused(given: dict[str, int], field: str) -> None:
    problems = size_problems(**{"min_nodes": 0, "max_nodes": 4, "desired_nodes": 0, **given})

    assert [name for name, _ in problems] == [field]
    assert f"got {given.get(field, '')}" in problems[0][1]
    assert size_problems(min_nodes=0, max_nodes=4, desired_nodes=4) == []


@pytest.mark.parametrize(
    ("given", "field", "text"),
    [
        ({"size_gib": 8}, "root_volume_gib", "20 to 16384"),
        ({"iops": 16_001}, "root_volume_iops", "3000 to 16000"),
        ({"throughput_mibps": 1001}, "root_volume_throughput_mibps", "125 to 1000"),
        ({"throughput_mibps": 1000}, "root_volume_iops", "4 IOPS per MiB/s: 4000"),
    ],
)
def test_a_volume_that_ebs_would_refuse_is_refused_first(given: dict[str, int], field: str, text: str) -> None:
    good = {"size_gib": 100, "iops": 3000, "throughput_mibps": 125}

    (problem,) = volume_problems(**{**good, **given})

    assert problem[0] == field
    assert text in problem[1]
    assert volume_problems(**good) == []
