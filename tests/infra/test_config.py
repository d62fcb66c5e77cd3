"""From Pulumi's configuration to the mapping that StackSettings judges."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from eks_gpu_serving.settings import StackSettings
from eks_gpu_serving.stack_files import find_project, load_stack, stack_mapping
from harness import run
from infra import config
from ray_model_serving.contract.problems import SettingsError
from ray_model_serving.contract.reading import to_mapping

CHECKOUT = Path(__file__).parents[2]
PROJECT = yaml.safe_load((CHECKOUT / "Pulumi.yaml").read_text(encoding="utf-8"))
STACKS = ("dev", "staging", "prod")


def as_engine_sends(mapping: Mapping[str, Any]) -> dict[str, str]:
    """Texts as they are, everything else as JSON: how the engine hands configuration over."""
    return {
        f"eks-gpu-serving:{key}": value if isinstance(value, str) else json.dumps(value)
        for key, value in mapping.items()
    }


def loaded(values: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    run(lambda: found.update(config.load()), config=values)
    return found


@pytest.mark.parametrize("stack", STACKS)
def test_program_and_command_read_the_same_settings(stack: str) -> None:
    mapping = stack_mapping(CHECKOUT / "infra" / "environments" / f"Pulumi.{stack}.yaml", find_project(CHECKOUT))
    defaults = {key: entry["default"] for key, entry in PROJECT["config"].items() if "default" in entry}
    assert StackSettings.from_mapping(loaded(as_engine_sends({**defaults, **mapping}))) == load_stack(stack, CHECKOUT)


def test_an_unknown_key_is_read_so_that_it_is_refused() -> None:
    values = loaded({"eks-gpu-serving:enviroment": "dev"})
    with pytest.raises(SettingsError, match="enviroment: unknown key; did you mean 'environment'"):
        StackSettings.from_mapping(values)


def test_keys_of_other_namespaces_are_left_to_their_owners() -> None:
    assert loaded({"eks-gpu-serving:region": "us-east-1", "aws:region": "eu-west-1"}) == {"region": "us-east-1"}


def test_a_text_that_looks_like_a_number_stays_a_text() -> None:
    assert loaded({"eks-gpu-serving:name": "2026"}) == {"name": "2026"}


def test_what_is_no_json_is_refused_by_the_settings_and_not_by_a_stack_trace() -> None:
    with pytest.raises(SettingsError, match=r"node_groups: got 'l4', must be a list"):
        StackSettings.from_mapping(loaded({"eks-gpu-serving:node_groups": "l4"}))


def test_an_engine_hands_the_values_over_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps({"eks-gpu-serving:tags": '{"team": "search"}'}))
    assert loaded({}) == {"tags": {"team": "search"}}


def test_the_project_file_declares_every_key_with_the_words_of_the_settings() -> None:
    fields = {field.name: field.metadata["doc"] for field in dataclasses.fields(StackSettings)}
    assert {key: entry["description"] for key, entry in PROJECT["config"].items()} == fields


def test_the_project_file_demands_what_the_settings_demand_and_has_no_defaults_of_its_own() -> None:
    for field in dataclasses.fields(StackSettings):
        entry = PROJECT["config"][field.name]
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        assert required != ("default" in entry), "Pulumi refuses a stack without a value for a key without a default"
        if field.default is not dataclasses.MISSING:
            assert entry["default"] == to_mapping(field.default)
        elif not required:
            assert entry["default"] == {}, "what is in the object has its defaults in StackSettings only"
