import re
import tomllib
from pathlib import Path

import pytest
import ray
from packaging.requirements import Requirement

from ray_model_serving.contract.paths import SERVING_UID

SERVE_APP = Path(__file__).parents[3] / "serve_app"


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (SERVE_APP / "Dockerfile").read_text()


def default_of(argument: str, dockerfile: str) -> str:
    found = re.search(rf"^ARG {argument}=(\S+)$", dockerfile, re.MULTILINE)
    assert found, f"the Dockerfile has no default for {argument}"
    return found[1]


def requirement(name: str) -> Requirement:
    document = tomllib.loads((SERVE_APP / "pyproject.toml").read_text())
    given = [Requirement(text) for text in document["project"]["optional-dependencies"]["serve"]]
    return next(found for found in given if found.name == name)


def test_the_image_has_the_ray_that_the_library_asks_for_and_the_tests_ran_with(dockerfile):  # UR-051
    version = default_of("RAY_VERSION", dockerfile)
    assert version == ray.__version__
    assert version in requirement("ray").specifier


def test_the_image_has_the_torch_that_the_library_asks_for(dockerfile):
    installed = re.search(r'"(torch[^"]+)"', dockerfile)
    assert installed
    assert Requirement(installed[1]).specifier == requirement("torch").specifier


def test_the_image_runs_as_the_user_that_the_node_cache_is_handed_to(dockerfile):  # UR-075
    users = re.findall(r"^USER (\S+)$", dockerfile, re.MULTILINE)
    assert users[-1] == str(SERVING_UID)


def test_the_image_copies_only_what_exists(dockerfile):
    copied = re.findall(r"^COPY --chown=\S+ (\S+) ", dockerfile, re.MULTILINE)
    assert copied
    assert [name for name in copied if not (SERVE_APP / name).exists()] == []
