"""What must stay true of the checkout as a whole."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from eks_gpu_serving.settings import RAY_VERSION

ROOT = Path(__file__).parents[1]


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


def project(folder: str) -> dict:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]


def test_every_file_with_a_test_function_is_collected() -> None:
    strays = [
        path
        for path in tracked("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not (path.name.startswith("test_") and (ROOT / "tests") in path.parents)
    ]
    assert not strays, "pytest collects tests/**/test_*.py only, and nothing reports what it leaves out"


def test_the_import_contracts_hold() -> None:
    run = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_planning_needs_neither_pulumi_nor_ray_nor_torch() -> None:
    heavy = ["pulumi", "ray", "torch", "boto3", "numpy"]
    code = f"import sys, eks_gpu_serving.cli.app; sys.exit(','.join(m for m in {heavy} if m in sys.modules) or 0)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, f"gpu-serving must start at once and run anywhere, it imported {run.stderr}"


def test_one_ray_version_in_settings_pins_ranges_and_image() -> None:
    # UR-051
    pins = (ROOT / "requirements.txt").read_text()
    assert re.search(rf"^ray==({re.escape(RAY_VERSION)})\b", pins, re.MULTILINE)
    serve = project("serve_app")["optional-dependencies"]["serve"]
    assert any(re.match(rf"ray\[serve\]>={re.escape(RAY_VERSION.rpartition('.')[0])}", item) for item in serve)
    assert RAY_VERSION in (ROOT / "serve_app" / "Dockerfile").read_text()


def test_both_distributions_have_one_version() -> None:
    components, serve_app = project("components"), project("serve_app")
    assert components["version"] == serve_app["version"]
    assert f"ray-model-serving=={serve_app['version']}" in components["dependencies"]


def test_the_makefile_offers_at_most_eight_verbs_and_explains_each() -> None:
    text = (ROOT / "Makefile").read_text()
    verbs = re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    assert verbs
    names = verbs.group(1).split()
    assert len(names) <= 8
    unexplained = [name for name in names if not re.search(rf"^{name}:.*## \S", text, re.MULTILINE)]
    assert not unexplained


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_within_the_checkout_lead_somewhere(document: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / document).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []
