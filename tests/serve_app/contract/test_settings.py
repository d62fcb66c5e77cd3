"""ServingSettings: what the infrastructure renders is what the builder reads."""

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_model_serving.contract.problems import SettingsError
from ray_model_serving.contract.settings import Device, Dtype, LoadMode, ServingSettings


def model(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "name": "minilm",
        "route": "/embed",
        "model_class": "ray_model_serving.models.text_embedding:TextEmbedding",
        "uri": "s3://models/minilm/v1/",
        "device": "cpu",
        "weights_bytes": 90_000_000,
        "host_peak_bytes": 20_000_000,
    }
    return {**plain, **changes}


def settings(*models: dict[str, Any], **changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "models": list(models or [model()]),
        "cache_root": "/model-cache",
        "cache_budget_bytes": 10**10,
        "load_deadline_s": 600,
    }
    return {**plain, **changes}


def problem_with(given_settings: dict[str, Any]) -> str:
    with pytest.raises(SettingsError) as raised:
        ServingSettings.from_mapping(given_settings)
    return raised.value.message


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "dtype": st.sampled_from([member.value for member in Dtype]),
            "load_mode": st.sampled_from([member.value for member in LoadMode]),
            "snapshot_id": st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
            "include": st.lists(st.text("a*?[]/. é", max_size=5).filter(str.strip), min_size=1, max_size=3),
            "num_cpus": st.integers(1, 5_120_000).map(lambda steps: steps / 10_000),
            "host_peak_bytes": st.integers(0, 2**50),
            "max_replicas": st.integers(1, 1000),
        },
    )
)
def test_settings_come_back_the_same_through_the_json_of_a_serve_config(changes: dict[str, Any]):
    read = ServingSettings.from_mapping(settings(model(**changes)))
    assert ServingSettings.from_mapping(json.loads(json.dumps(read.to_mapping()))) == read


def test_defaults_are_those_of_the_design():
    (read,) = ServingSettings.from_mapping(settings()).models
    limits = read.limits
    assert (limits.max_ongoing_requests, limits.max_queued_requests, limits.max_batch_size) == (8, 16, 8)
    assert (limits.batch_wait_s, limits.request_deadline_s, limits.max_body_bytes) == (0.01, 30.0, 8 * 1024**2)
    assert (read.dtype, read.load_mode, read.device) == (Dtype.AUTO, LoadMode.BACKGROUND, Device.CPU)


@pytest.mark.parametrize("name", ["max_concurrent_queries", "target_num_ongoing_requests_per_replica", "num_replicas"])
def test_names_that_ray_serve_ignores_or_refuses_say_what_to_write(name: str):
    assert f"models[0].{name}: unknown key; " in problem_with(settings(model(**{name: 3})))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"uri": "http://x/y"}, "a model URI starts with s3:// or file://"),
        ({"device": "cuda"}, "a model on device cuda needs a GPU"),
        ({"num_gpus": 1.0}, "a model on device cpu asks for no GPU"),
        ({"device": "cuda", "num_gpus": 1.5}, "only whole GPUs"),
        ({"min_replicas": 3, "max_replicas": 2}, "must be at most max_replicas 2"),
        ({"autoscaling": {"target_ongoing_requests": 9}}, "must be at most limits.max_ongoing_requests 8"),
        ({"autoscaling": {"look_back_period_s": 60}}, "replicas would come and go in circles"),
        ({"autoscaling": {"look_back_period_s": 60, "surplus": 1}}, "replicas would come and go in circles"),
        ({"num_cpus": 0.00005}, "models[0].num_cpus: got 5e-05, must be a multiple of 0.0001"),
        ({"device": "cuda", "num_gpus": 0.33333}, "models[0].num_gpus: got 0.33333, must be a multiple of 0.0001"),
        ({"include": ["*.json", ""]}, "models[0].include[1]: got '', must be a file pattern"),
        ({"exclude": ["a\nb"]}, "models[0].exclude[0]: got 'a\\nb', must be a file pattern"),
        ({"weights_bytes": 10**400}, "models[0].weights_bytes: got 1"),
        ({"snapshot_id": "v1"}, "must match"),
        ({"model_class": "no-class"}, "must match"),
    ],
)
def test_models_that_can_not_work_are_refused(changes: dict[str, Any], problem: str):
    assert problem in problem_with(settings(model(**changes)))


@pytest.mark.parametrize(
    ("route", "problem"),
    [
        ("embed", "must start with /"),
        ("/a b", "must start with / and have letters"),
        ("/a\n", "must start with / and have letters"),
        ("//", "no //"),
        ("/a//b", "no //"),
        ("/a/", "no / at its end"),
        ("/-", "must not lie under /-/"),
        ("/-/healthz", "must not lie under /-/"),
        ("/a/../b", "no '.' or '..' segment"),
        ("/.", "no '.' or '..' segment"),
    ],
)
def test_a_route_that_no_request_reaches_is_refused(route: str, problem: str):
    text = problem_with(settings(model(route=route)))
    assert "models[0].route: got" in text
    assert problem in text


@pytest.mark.parametrize("route", ["/", "/a", "/a/b", "/v1.0/a-b_c", "/a-/b"])
def test_a_route_that_a_request_reaches_is_accepted(route: str):
    assert ServingSettings.from_mapping(settings(model(route=route))).models[0].route == route


def test_names_and_routes_are_unique():
    text = problem_with(settings(model(), model()))
    assert "name 'minilm' is used 2 times" in text
    assert "route '/embed' is used 2 times" in text


def test_problems_of_all_parts_come_together():
    text = problem_with(settings(model(uri="x"), model(name="B"), cache_root="relative"))
    for part in ("models[0].uri", "models[1].name", "cache_root", "route '/embed' is used 2 times"):
        assert part in text
    assert "4 problems" in text


def test_the_error_survives_a_process_boundary_and_has_the_json_of_the_commands():
    with pytest.raises(SettingsError) as raised:
        ServingSettings.from_mapping({})
    copy = pickle.loads(pickle.dumps(raised.value))
    assert copy.to_json() == raised.value.to_json()
    assert copy.to_json()["error"]["kind"] == "bad_input"
    assert {problem["path"] for problem in copy.to_json()["problems"]} >= {"models", "cache_root"}
