"""The Serve application that the cluster is told to run."""

import dataclasses
import itertools
import typing
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from pydantic import BaseModel
from ray.serve import schema
from ray.serve.config import AutoscalingConfig

from eks_gpu_serving.planning.capacity import CapacityPlan
from eks_gpu_serving.planning.plan import plan
from eks_gpu_serving.ray_service.serve_config import serve_config
from eks_gpu_serving.settings import RAY_VERSION, StackSettings
from ray_model_serving.contract.deployments import INGRESS_NAME
from ray_model_serving.contract.settings import ServingSettings

CHECKOUT = Path(__file__).parents[3]
ROLE = "arn:aws:iam::123456789012:role/models"


@pytest.fixture
def document(settings: StackSettings, capacity: CapacityPlan) -> dict[str, Any]:
    """The parsed serveConfigV2 of a stack."""
    return yaml.safe_load(serve_config(settings, capacity, model_role_arn=ROLE))


def models_of(hint: Any) -> list[type[BaseModel]]:
    """The schemas that a field's type names, however deep."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return [hint]
    return [model for part in typing.get_args(hint) for model in models_of(part)]


def undeclared(model: type[BaseModel], given: dict[str, Any], path: str) -> list[str]:
    """Keys that Ray's schemas accept without a word and then ignore, here and in what is inside."""
    found = [f"{path}.{key}" for key in given if key not in model.model_fields]
    for key in set(given) & set(model.model_fields):
        items = given[key] if isinstance(given[key], list) else [given[key]]
        parts = models_of(model.model_fields[key].annotation) or EXTRA.get((model, key), [])
        for part, item in itertools.product(parts[:1], items):
            if isinstance(item, dict):
                found += undeclared(part, item, f"{path}.{key}")
    return found


# Ray declares this part as a plain mapping and reads it with this schema.
EXTRA: dict[tuple[type[BaseModel], str], list[type[BaseModel]]] = {
    (schema.DeploymentSchema, "autoscaling_config"): [AutoscalingConfig],
}


def test_serve_reads_every_key(document: dict[str, Any]) -> None:  # UR-016
    assert undeclared(schema.ServeDeploySchema, document, "") == [], (
        "the schemas take unknown keys silently: the application would run with Ray's defaults"
    )


@pytest.mark.parametrize(
    "place",
    ["", "http_options", "applications.0", "applications.0.deployments.0"]
    + [
        f"applications.0.deployments.0.{part}"
        for part in ("ray_actor_options", "autoscaling_config", "autoscaling_config.policy")
    ],
)
def test_a_key_that_serve_does_not_read_is_found(place: str, document: dict[str, Any]) -> None:  # UR-016
    part: Any = document
    for name in filter(None, place.split(".")):
        part = part[int(name)] if name.isdigit() else part[name]
    part["max_concurrent_queries"] = 2
    assert [path.rpartition(".")[2] for path in undeclared(schema.ServeDeploySchema, document, "")] == [
        "max_concurrent_queries"
    ]


def test_serve_takes_the_document_as_it_is(document: dict[str, Any]) -> None:  # UR-016
    parsed = schema.ServeDeploySchema.model_validate(document)
    for deployment in parsed.applications[0].deployments:
        assert deployment.max_queued_requests > 0, "-1 is a queue without end"  # UR-015
        assert isinstance(deployment.max_ongoing_requests, int)


def test_the_application_gets_the_settings_of_the_plan_and_nothing_else(
    document: dict[str, Any], capacity: CapacityPlan
) -> None:
    args = document["applications"][0]["args"]
    assert ServingSettings.from_mapping(args) == dataclasses.replace(capacity.serving, expected_role_arn=ROLE)


def test_one_model_is_the_application_and_several_stand_behind_an_ingress(
    settings: StackSettings, document: dict[str, Any]
) -> None:
    (application,) = document["applications"]
    names = [deployment["name"] for deployment in application["deployments"]]
    if len(settings.models) == 1:
        assert application["route_prefix"] == settings.models[0].route
        assert names == [settings.models[0].name]
    else:
        assert application["route_prefix"] == "/"
        assert names == [*(model.name for model in settings.models), INGRESS_NAME]


def test_every_wait_for_a_client_ends(document: dict[str, Any], capacity: CapacityPlan) -> None:  # UR-015
    options = document["http_options"]
    assert options["request_timeout_s"] == capacity.timeouts.proxy_request_s > 0
    assert options["keep_alive_timeout_s"] > 0


def test_without_a_role_no_identity_is_demanded(several: Callable[..., StackSettings]) -> None:
    settings = several()
    document = yaml.safe_load(serve_config(settings, plan(settings), model_role_arn=None))
    assert "expected_role_arn" not in document["applications"][0]["args"]


def test_the_library_takes_the_ray_version_of_the_stack_and_no_other() -> None:  # UR-051
    requirements = [Requirement(line) for line in requires("ray-model-serving") or []]
    specifiers = [requirement.specifier for requirement in requirements if requirement.name == "ray"]
    minor = int(RAY_VERSION.split(".")[1])
    assert specifiers
    for specifier in specifiers:
        assert specifier.contains(RAY_VERSION)
        assert not specifier.contains(f"2.{minor - 1}.0"), "head, workers and library speak one protocol"
        assert not specifier.contains(f"2.{minor + 1}.0")
    pins = [
        Requirement(line)
        for line in (CHECKOUT / "requirements.txt").read_text().splitlines()
        if line.startswith("ray==")
    ]
    assert [str(pin.specifier) for pin in pins] == [f"=={RAY_VERSION}"]
