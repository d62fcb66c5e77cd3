"""Reading ``Pulumi.<stack>.yaml`` without Pulumi."""

from pathlib import Path

import pytest

from eks_gpu_serving.stack_files import StackFileError, load_stack, stack_mapping

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "Pulumi.yaml").write_text("name: eks-gpu-serving\nstackConfigDir: stacks\n")
    (tmp_path / "stacks").mkdir()
    return tmp_path


@pytest.mark.parametrize("stack", ["dev", "staging", "prod"])
def test_every_environment_of_the_project_is_valid(stack: str) -> None:
    assert load_stack(stack, ROOT / "infra").environment.value == stack


def test_the_project_is_found_from_a_folder_inside_it(project: Path) -> None:
    with pytest.raises(StackFileError, match=r"there is no Pulumi\.dev\.yaml"):
        load_stack("dev", project / "stacks")


def test_a_missing_stack_names_the_nearest_one(project: Path) -> None:
    (project / "stacks" / "Pulumi.staging.yaml").write_text("config: {}\n")
    with pytest.raises(StackFileError, match="did you mean 'staging'"):
        load_stack("stagin", project)


def test_outside_a_project_the_error_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(StackFileError, match=r"not found in .* run this inside the project"):
        load_stack("dev", tmp_path)


def test_keys_of_other_namespaces_are_left_to_their_owners(project: Path) -> None:
    path = project / "stacks" / "Pulumi.dev.yaml"
    path.write_text("config:\n  aws:region: us-east-1\n  eks-gpu-serving:region: us-west-2\n")
    assert stack_mapping(path) == {"region": "us-west-2"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("config: [1]\n", "must be a mapping"),
        ("config:\n  a: 1\n  a: 2\n", "'a' occurs twice"),
        ("config: {", "can't be read"),
        ("", "is empty"),
        ("\x00", "can't be read"),
    ],
)
def test_a_file_that_is_no_stack_file_is_refused_with_the_reason(project: Path, text: str, reason: str) -> None:
    path = project / "stacks" / "Pulumi.dev.yaml"
    path.write_text(text)
    with pytest.raises(StackFileError, match=reason):
        stack_mapping(path)
