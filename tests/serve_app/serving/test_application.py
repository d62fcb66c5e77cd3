import inspect
import subprocess
import sys
from typing import Any

import pytest
from ray.serve import Application
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import DeploymentSchema, RayActorOptionsSchema

from ray_model_serving.app import build
from ray_model_serving.contract.deployments import INGRESS_NAME, deployment_options, ingress_options
from ray_model_serving.contract.problems import SettingsError
from ray_model_serving.contract.settings import ServingSettings

SECOND = {"name": "second", "route": "/second"}


def settings_of(args: dict[str, Any]) -> ServingSettings:
    return ServingSettings.from_mapping(args)


def deployment_of(application: Application) -> Any:
    return application._bound_deployment


def test_serve_takes_the_builder_with_the_plain_args_of_a_config_file(make_args):
    args = settings_of(make_args()).to_mapping()
    application = call_user_app_builder_with_args_if_necessary(build, args)
    assert deployment_of(application).name == "embed"


def test_a_single_model_is_deployed_with_exactly_the_options_of_the_contract(make_args):
    args = make_args({"min_replicas": 2, "max_replicas": 3})
    deployment = deployment_of(build(args))
    options: dict[str, Any] = deployment_options(settings_of(args).models[0])
    assert deployment.max_ongoing_requests == options["max_ongoing_requests"]
    assert deployment.max_queued_requests == options["max_queued_requests"]
    actor_options = {key: deployment.ray_actor_options[key] for key in options["ray_actor_options"]}
    assert actor_options == options["ray_actor_options"]
    assert type(deployment.ray_actor_options["memory"]) is int, "Ray refuses text such as 12Gi"  # UR-002
    autoscaling = deployment._deployment_config.autoscaling_config.model_dump()
    assert {key: autoscaling[key] for key in options["autoscaling_config"]} == options["autoscaling_config"]


def test_several_models_stand_behind_one_ingress(make_args):
    deployment = deployment_of(build(make_args({}, SECOND)))
    assert deployment.name == INGRESS_NAME
    assert deployment.max_queued_requests > 0


@pytest.mark.parametrize("which", ["model", "ingress"])
def test_every_option_is_a_declared_field_of_the_pinned_ray(make_args, which):  # UR-016
    models = settings_of(make_args({}, SECOND)).models
    options: dict[str, Any] = deployment_options(models[0]) if which == "model" else ingress_options(models)
    # Ray's schemas accept unknown keys without a word, so a misspelt one would be no limit at all.
    assert set(options) <= set(DeploymentSchema.model_fields)
    assert set(options.get("autoscaling_config", {})) <= set(AutoscalingConfig.model_fields)
    assert set(options["ray_actor_options"]) <= set(RayActorOptionsSchema.model_fields)
    DeploymentSchema.model_validate(options)


def test_the_smallest_values_that_the_settings_allow_are_allowed_by_ray(make_args):
    smallest = {"max_ongoing_requests": 2, "max_queued_requests": 1, "max_batch_size": 1, "max_body_bytes": 1}
    build(make_args({"min_replicas": 0, "limits": smallest}))


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (
            {"max_concurrent_queries": 2},
            ["models[0].max_concurrent_queries: unknown key", "write limits.max_ongoing_requests"],
        ),
        (
            {"autoscaling": {"target_num_ongoing_requests_per_replica": 20}},
            ["models[0].autoscaling.target_num_ongoing_requests_per_replica", "write target_ongoing_requests"],
        ),
        (
            {"autoscaling": {"max_ongoing_requests": 100}},
            ["models[0].autoscaling.max_ongoing_requests", "one level up"],
        ),
        (
            {"autoscaling": {"target_ongoing_requests": 10}, "limits": {"max_ongoing_requests": 5}},
            ["target_ongoing_requests: got 10", "at most limits.max_ongoing_requests 5"],
        ),
        ({"limits": {"max_queued_requests": -1}}, ["models[0].limits.max_queued_requests: got -1"]),
        ({"limits": {"max_queued_requests": 0}}, ["models[0].limits.max_queued_requests: got 0, must be at least 1"]),
    ],
)
def test_settings_that_serve_would_misread_do_not_build(make_args, change, texts):  # UR-016
    with pytest.raises(SettingsError) as caught:
        build(make_args(change))
    for text in texts:
        assert text in str(caught.value)


def test_all_problems_of_the_settings_are_told_at_once(make_args):
    with pytest.raises(SettingsError) as caught:
        build(make_args({"uri": "http://models/", "colour": "red"}, load_deadline_s=0))
    assert [problem.path for problem in caught.value.problems] == [
        "models[0].colour",
        "models[0].uri",
        "load_deadline_s",
    ]


@pytest.mark.parametrize(
    ("module", "absent"),
    [("ray_model_serving.app", ["torch", "boto3"]), ("ray_model_serving.model", ["torch", "ray", "boto3"])],
)
def test_importing_stays_light(module, absent):
    code = f"import sys, {module}; print([name for name in {absent} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[]", "Serve builds on the head, which is not sized for models"


def test_the_builder_is_a_function_of_one_argument():
    assert len(inspect.signature(build).parameters) == 1, "Serve refuses a builder with more"
