"""Names that AWS would refuse after minutes are refused at once."""

import pytest

from eks_gpu_serving import name_limits
from eks_gpu_serving.name_limits import name_problem


@pytest.mark.parametrize(
    ("longest", "suffix"),
    [
        (name_limits.NODE_GROUP, "-node-role"),
        (name_limits.MODEL_ROLE, "-role"),
        (name_limits.CLUSTER, "-eks-eksRole-role"),
    ],
)
def test_the_longest_name_just_fits_into_an_iam_role_name(longest: int, suffix: str) -> None:
    name = "x" * longest
    assert len(f"{name}{suffix}-1234567") == 64
    assert name_problem(name, longest) is None
    assert "at most" in str(name_problem(f"{name}x", longest))
