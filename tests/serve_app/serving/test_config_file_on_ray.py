"""The way of production: KubeRay hands Serve a config file that names the builder."""

import time
from typing import Any

from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from ray_model_serving.app import build
from ray_model_serving.contract.deployments import deployment_options
from ray_model_serving.contract.settings import ServingSettings


def wait_for(running_serve, route: str, wanted: str) -> None:
    for _ in range(600):
        if running_serve.status(route).status == wanted:
            return
        time.sleep(0.05)
    raise AssertionError(f"{route} is not {wanted}: {running_serve.status(route)}")


def test_a_config_file_deploys_the_builder_and_tells_every_problem_of_bad_settings(
    running_serve, make_times_model, make_args, tmp_path
):  # UR-016
    good, bad = running_serve.unique_route(), running_serve.unique_route()
    model = make_times_model().settings(good, load_mode="lazy")
    args = {**make_args(cache_root=str(tmp_path / "cache")), "models": [model]}
    broken = {**model, "max_concurrent_queries": 2, "uri": "http://models/"}

    def application(route: str, args: Any, **more: Any) -> dict[str, Any]:
        builder = f"{build.__module__}:{build.__name__}"
        return {"name": route.strip("/"), "route_prefix": route, "import_path": builder, "args": args, **more}

    options = deployment_options(ServingSettings.from_mapping(args).models[0])
    applications = [
        application(good, args, deployments=[options]),
        application(bad, {**args, "models": [broken]}),
    ]
    client = _get_global_client()
    assert client is not None
    client.deploy_apps(ServeDeploySchema.model_validate({"applications": applications}))
    try:
        wait_for(running_serve, bad, "DEPLOY_FAILED")
        message = running_serve.status(bad).message
        assert "models[0].max_concurrent_queries: unknown key; renamed: write limits.max_ongoing_requests" in message
        assert "models[0].uri: " in message, "all problems at once"
        wait_for(running_serve, good, "RUNNING")
        with running_serve.client() as http:
            assert http.get(f"{good}/status").json()["state"] == "unloaded"
    finally:
        client.deploy_apps(ServeDeploySchema(applications=[]))
