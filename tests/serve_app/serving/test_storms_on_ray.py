"""Start storms on real Serve: the controller asks for no more while a replica starts, and loads take turns."""

import time
from typing import Any

from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from ray_model_serving.app import build
from ray_model_serving.contract.deployments import deployment_options
from ray_model_serving.contract.settings import ServingSettings


def replicas(running_serve, route: str) -> dict[str, int]:
    return running_serve.status(route).deployments[route.strip("/")].replica_states


def wait_for(running_serve, route: str, wanted: dict[str, int]) -> None:
    for _ in range(600):
        application = running_serve.status(route)
        if application.deployments and replicas(running_serve, route) == wanted:
            return
        time.sleep(0.05)
    raise AssertionError(f"{route} has not {wanted}: {running_serve.status(route)}")


def test_the_controller_asks_for_no_more_while_a_replica_from_a_config_file_starts(
    running_serve, make_times_model, make_args, tmp_path, in_background
):
    route, model = running_serve.unique_route(), make_times_model(held=True)
    counts = {"min_replicas": 1, "max_replicas": 4, "num_cpus": 0.2}
    args = make_args(cache_root=str(tmp_path / "cache"))
    args["models"] = [model.settings(route, load_mode="background", autoscaling={"max_step": 1}, **counts)]
    options: Any = deployment_options(ServingSettings.from_mapping(args).models[0])
    # Serve's own periods, much shorter than it takes in production.
    quick = {"metrics_interval_s": 0.2, "look_back_period_s": 0.5, "upscale_delay_s": 0.5, "target_ongoing_requests": 1}
    options["autoscaling_config"] |= quick
    application = {"name": route.strip("/"), "route_prefix": route, "import_path": "ray_model_serving.app:build"}
    client = _get_global_client()
    assert client is not None
    document = {"applications": [{**application, "args": args, "deployments": [options]}]}
    client.deploy_apps(ServeDeploySchema.model_validate(document))
    try:
        model.wait_until_held()()  # the first replica may load
        wait_for(running_serve, route, {"RUNNING": 1})
        with running_serve.client() as http:
            load = [in_background(lambda: press(http, route)) for _ in range(6)]
            wait_for(running_serve, route, {"RUNNING": 1, "STARTING": 1})
            let_go = model.wait_until_held()
            for answer in load:
                answer.get()
        # Six requests a replica asked for four replicas; Serve's own policy would have started three at once.
        assert replicas(running_serve, route) == {"RUNNING": 1, "STARTING": 1}
        let_go()
        wait_for(running_serve, route, {"RUNNING": 2})
    finally:
        client.deploy_apps(ServeDeploySchema(applications=[]))


def press(http: Any, route: str) -> None:
    end = time.monotonic() + 6
    while time.monotonic() < end:
        http.post(route, json={"inputs": [1] * 64})


def test_replicas_of_a_node_that_start_together_download_once_and_load_one_after_another(
    running_serve, deploy, make_times_model, make_args, tmp_path, bucket
):  # UR-087
    route, model = running_serve.unique_route(), make_times_model(held=True)
    files = {path.name: path.read_bytes() for path in model.directory.iterdir()}
    args = make_args(cache_root=str(tmp_path / "cache"), loads_at_once_per_node=1)
    counts = {"min_replicas": 3, "max_replicas": 3, "num_cpus": 0.2}
    args["models"] = [model.settings(route, load_mode="lazy", uri=bucket.put(files), **counts)]
    deploy(build(args), route)
    with running_serve.client() as http:
        assert len(http.post(f"{route}/warmup").json()["replicas"]) == 3
        for loads in (1, 2, 3):
            wait_for_builds(model, loads)
            let_go = model.wait_until_held()
            states = [replica["state"] for replica in http.post(f"{route}/warmup").json()["replicas"]]
            assert states.count("ready") == loads - 1
            assert states.count("loading") == 4 - loads, "all asked to load"
            assert model.builds() == loads, "the others wait for the node's slot"
            let_go()
        found: list[Any] = [{"state": "loading"}]
        for _ in range(600):
            if {replica["state"] for replica in found} == {"ready"}:
                break
            time.sleep(0.05)
            found = http.post(f"{route}/warmup").json()["replicas"]
    from_store = sorted(replica["load"]["bytes"]["store"] for replica in found)
    assert from_store == [0, 0, sum(map(len, files.values()))], "bytes from the store are 1.00 x the model"


def wait_for_builds(model: Any, count: int) -> None:
    for _ in range(600):
        if model.builds() >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"no load number {count} within half a minute")
