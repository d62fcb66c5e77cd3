"""The page on serving says what the code does."""

import re
from pathlib import Path

import typer
import yaml

from ray_model_serving.cli.app import app
from ray_model_serving.contract.metrics import REASONS
from ray_model_serving.contract.settings import RESERVED_NAMES
from ray_model_serving.model import ServedModel

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


def test_every_method_of_the_class_and_every_route_is_on_the_page():
    methods = [name for name, member in vars(ServedModel).items() if callable(member) and not name.startswith("_")]
    assert [name for name in methods if f"| `{name}(" not in PAGE] == []
    assert [name for name in RESERVED_NAMES if f"<route>/{name}`" not in PAGE] == []


def test_every_reason_of_a_refusal_has_a_row():
    rows = "".join(line for line in PAGE.splitlines() if re.match(r"\| [45]\d\d", line))
    assert [reason for reason in REASONS if f"`{reason}`" not in rows] == []


def test_the_job_of_the_gate_gives_options_that_the_command_has():
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    job = yaml.safe_load(block)
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    warmup = typer.main.get_command(app).commands["warmup"]  # pyright: ignore[reportAttributeAccessIssue]
    options = {name for parameter in warmup.params for name in parameter.opts}
    assert command[:2] == ["ray-model", "warmup"]
    assert {part for part in command if part.startswith("--")} <= options
    limit_s = int(command[command.index("--timeout-s") + 1])
    assert job["spec"]["activeDeadlineSeconds"] > limit_s, "else Kubernetes ends it before it has a verdict"
