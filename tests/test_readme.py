"""Everything that the README shows is run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from eks_gpu_serving.planning.plan import plan
from eks_gpu_serving.stack_files import load_stack
from harness import run

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def shell_lines(language: str) -> list[str]:
    return [line for text in blocks(language) for line in text.splitlines() if line]


def test_every_block_has_a_language_that_a_test_here_knows_how_to_run() -> None:
    assert {kind for kind, _ in BLOCKS} == {"sh", "console", "yaml", "python"}


@pytest.mark.parametrize("line", [line for line in shell_lines("sh") if not line.startswith("make ")])
def test_a_command_of_the_readme_runs(line: str, tmp_path: Path) -> None:
    words = shlex.split(line.replace("--out rendered", f"--out {tmp_path}/rendered"))
    words[0] = str(Path(sys.executable).parent / Path(words[0]).name)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_make_verbs_of_the_readme_are_what_the_checks_run() -> None:
    # `make test` is this very run, and `make demo` has a test of its own; here: that they are verbs of the Makefile.
    verbs = {line.split()[1] for line in shell_lines("sh") if line.startswith("make ")}
    assert verbs == {"demo", "test"}
    for verb in verbs:
        done = subprocess.run(["make", "-n", verb], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    ci = (ROOT / ".ci" / "run").read_text()
    assert all(f"make {verb}\n" in ci for verb in verbs), "a change lands only when both have run on a clean clone"


def test_the_shortest_stack_of_the_readme_fits(tmp_path: Path) -> None:
    (text,) = blocks("yaml")
    (tmp_path / "Pulumi.yaml").write_text("name: eks-gpu-serving\n")
    (tmp_path / "Pulumi.demo.yaml").write_text(text)
    assert plan(load_stack("demo", tmp_path)).pools
    assert len(yaml.safe_load(text)["config"]) == 5, "the shortest stack stays short"


def test_the_pulumi_commands_of_the_readme_name_a_stack_that_exists() -> None:
    lines = shell_lines("console")
    assert lines == ["pulumi stack init dev", "pulumi preview", "pulumi up"]
    assert (ROOT / "infra" / "environments" / "Pulumi.dev.yaml").is_file()


def test_the_python_blocks_of_the_readme_run() -> None:
    component, model = blocks("python")
    graph = run(lambda: exec(compile(component, "README.md", "exec"), {"__name__": "readme"}))
    assert graph.one("aws:iam/role:Role")
    names: dict = {"__name__": "readme"}
    exec(compile(model, "README.md", "exec"), names)
    doubler = names["Doubler"]()
    doubler.max_batch_size = 2
    doubler.module = doubler.build(ROOT)
    doubler.module.weight.data.fill_(2.0)
    doubler.warm_up()
    assert doubler.predict_batch([1.0, 3.0]) == [2.0, 6.0]
