"""The program of this checkout, run as the engine runs it, with the configuration of each stack."""

import json
import runpy
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml

from eks_gpu_serving.stack_files import find_project, load_stack, stack_mapping
from harness import PREVIEW_MODES, UNKNOWN, Graph, run
from harness.properties import violations

CHECKOUT = Path(__file__).parents[2]
STACKS = ("dev", "staging", "prod")
STACK = "eks-gpu-serving:index:GpuServingStack"


def configuration(stack: str, **changes: Any) -> dict[str, str]:
    """What the engine sends: the stack file over the defaults of the project file, objects as JSON."""
    project = yaml.safe_load((CHECKOUT / "Pulumi.yaml").read_text(encoding="utf-8"))["config"]
    defaults = {key: entry["default"] for key, entry in project.items() if "default" in entry}
    given = stack_mapping(CHECKOUT / "infra" / "environments" / f"Pulumi.{stack}.yaml", find_project(CHECKOUT))
    values = {**defaults, **given, **changes}
    return {f"eks-gpu-serving:{k}": v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}


def program() -> None:
    runpy.run_path(str(CHECKOUT / "__main__.py"), run_name="__main__")


def graph(stack: str, *, preview: bool = False, **changes: Any) -> Graph:
    return run(program, preview=preview, config=configuration(stack, **changes))


@pytest.mark.parametrize("preview", PREVIEW_MODES)
@pytest.mark.parametrize("stack", STACKS)
def test_every_stack_file_makes_one_stack_that_keeps_the_rules(stack: str, preview: bool) -> None:
    found = graph(stack, preview=preview)
    assert found.one(STACK).name == load_stack(stack, CHECKOUT).service_name
    assert violations(found, tags={"team": "ml-platform", "environment": stack}) == []


@pytest.mark.parametrize("stack", STACKS)
def test_the_region_is_the_stacks_own_for_every_aws_resource(stack: str) -> None:
    found = graph(stack)
    provider = found.one("pulumi:providers:aws")
    assert provider.inputs["region"] == load_stack(stack, CHECKOUT).region
    for record in found:
        if record.type.startswith(("aws:", "eks:")):
            given = record.provider or record.providers.get("aws", "")
            assert given.startswith(f"{provider.urn}::"), f"{record} would follow somebody's shell"


def test_it_exports_what_an_operator_needs() -> None:
    updated, previewed = (graph("dev", preview=preview).exports for preview in PREVIEW_MODES)
    assert set(updated) == {"cluster_name", "service_name", "namespace", "model_role_arn", "kubeconfig"}
    assert updated["service_name"] == "gpu-serving-dev"
    assert json.loads(updated["kubeconfig"])["kind"] == "Config"
    assert previewed["cluster_name"] == UNKNOWN


def test_bad_keys_end_the_run_with_every_problem_and_the_name_of_the_file() -> None:
    with pytest.raises(pulumi.RunError) as refused:
        graph("dev", regin="us-east-1", name="Not A Name")
    text = str(refused.value)
    assert text.startswith("Pulumi.test.yaml: 2 problems\n")
    assert "regin: unknown key; did you mean 'region'?" in text
    assert "name: got 'Not A Name', must match" in text


def test_a_stack_that_does_not_fit_ends_the_run_with_both_numbers() -> None:
    pools = [{"name": "l4", "instance_type": "g6.xlarge", "max_nodes": 1}]
    models = stack_mapping(CHECKOUT / "infra" / "environments" / "Pulumi.dev.yaml", find_project(CHECKOUT))["models"]
    with pytest.raises(pulumi.RunError, match=r"max_replicas asks for 4 worker pods .* 1 x g6.xlarge hold 1"):
        graph("dev", node_groups=pools, models=[{**models[0], "max_replicas": 8}])  # type: ignore[index]
