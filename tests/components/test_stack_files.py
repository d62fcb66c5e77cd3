"""Reading ``Pulumi.<stack>.yaml`` without Pulumi."""

from pathlib import Path

import pytest

from eks_gpu_serving.stack_files import StackFileError, find_project, load_stack, stack_mapping
from ray_model_serving.contract.problems import SettingsError

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


def read(project: Path, text: str, name: str = "dev") -> dict[str, object]:
    path = project / "stacks" / f"Pulumi.{name}.yaml"
    path.write_text(text)
    return stack_mapping(path, find_project(project))


def test_keys_of_other_namespaces_are_left_to_their_owners(project: Path) -> None:
    text = "config:\n  aws:region: us-east-1\n  eks-gpu-serving:region: us-west-2\n  aws:token:\n    secure: v1:x\n"
    assert read(project, text) == {"region": "us-west-2"}


def test_a_key_without_a_namespace_is_the_projects_as_for_pulumi(project: Path) -> None:
    assert read(project, "config:\n  region: us-west-2\n") == {"region": "us-west-2"}
    with pytest.raises(StackFileError, match=r"config\.region: is given with and without eks-gpu-serving:"):
        read(project, "config:\n  region: a\n  eks-gpu-serving:region: b\n")


def test_the_namespace_is_the_name_of_the_project(project: Path) -> None:
    (project / "Pulumi.yaml").write_text("name: search\nstackConfigDir: stacks\n")
    assert read(project, "config:\n  search:region: a\n  eks-gpu-serving:name: b\n") == {"region": "a"}


def test_values_of_the_project_file_hold_where_a_stack_says_nothing(project: Path) -> None:
    config = "config:\n  region: {type: string, default: us-east-1}\n  name: search\n  tags: {value: {a: b}}\n"
    config += "  ray: {type: object}\n  aws:region: eu-west-1\n"
    (project / "Pulumi.yaml").write_text(f"name: eks-gpu-serving\nstackConfigDir: stacks\n{config}")
    assert read(project, "config:\n  name: other\n") == {"region": "us-east-1", "name": "other", "tags": {"a": "b"}}


@pytest.mark.parametrize("text", ["config:\n", "config: {}\n", "encryptionsalt: v1:x\n"])
def test_a_stack_without_values_is_told_what_is_required(project: Path, text: str) -> None:
    assert read(project, text) == {}
    with pytest.raises(SettingsError, match="environment: is required"):
        load_stack("dev", project)


def test_a_secret_is_refused_with_its_key_and_what_to_do(project: Path) -> None:
    text = "config:\n  region:\n    secure: v1:x\n  ray:\n    image: &a\n      secure: v1:y\n  models: [{uri: *a}]\n"
    with pytest.raises(StackFileError) as refused:
        read(project, text)
    assert [problem.path for problem in refused.value.problems] == ["region", "ray.image"]
    assert "no key of this project is one" in str(refused.value)


def test_a_qualified_stack_name_means_the_file_of_the_stack(project: Path) -> None:
    (project / "stacks" / "Pulumi.dev.yaml").write_text("config: {}\n")
    with pytest.raises(SettingsError, match=r"^Pulumi\.dev\.yaml: "):
        load_stack("organization/project/dev", project)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name: x\nstackConfigDir: 3\n", "stackConfigDir: got 3, must be text"),
        ("name: x\nstackConfigDir: [a]\n", r"stackConfigDir: got \['a'\], must be text"),
        ("stackConfigDir: stacks\n", "name: got None, must be text"),
        ("name: 2026\n", "name: got 2026, must be text"),
        ("name: x\nconfig: [1]\n", "config: got"),
    ],
)
def test_a_project_file_that_is_none_is_refused_with_the_key(project: Path, text: str, reason: str) -> None:
    (project / "Pulumi.yaml").write_text(text)
    with pytest.raises(StackFileError, match=reason):
        load_stack("dev", project)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("config: [1]\n", "must be a mapping"),
        ("config: {1: a}\n", "got the key 1, must be text; quote it"),
        ("config: {true: a}\n", "got the key True"),
        ("config:\n  a: 1\n  a: 2\n", "'a' occurs twice"),
        ("config: {", "can't be read"),
        ("", "is empty"),
        ("\x00", "can't be read"),
        (f"config: {'[' * 5000}", "nested too deeply"),
        (f"config: {{a: 1{'0' * 5000}}}", "can't be read"),
        ("config: {? [a] : b}", "can't be read"),
    ],
)
def test_a_file_that_is_no_stack_file_is_refused_with_the_reason(project: Path, text: str, reason: str) -> None:
    with pytest.raises(StackFileError, match=reason):
        read(project, text)


def test_a_value_that_is_part_of_itself_ends_in_a_refusal(project: Path) -> None:
    (project / "stacks" / "Pulumi.dev.yaml").write_text("config:\n  tags: &t {a: *t}\n  models: &m [*m]\n")
    with pytest.raises(SettingsError, match=r"models\[0\]: got"):
        load_stack("dev", project)


@pytest.mark.parametrize("word", ["yes", "on", "2026", "1.0", "2026-01-01"])
def test_a_bare_word_that_yaml_reads_as_something_else_says_how_to_write_it(project: Path, word: str) -> None:
    (project / "stacks" / "Pulumi.dev.yaml").write_text(f"config:\n  tags: {{team: {word}}}\n")
    with pytest.raises(SettingsError, match=r"tags\.team: got .* must be text \(quote it"):
        load_stack("dev", project)
