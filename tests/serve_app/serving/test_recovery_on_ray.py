"""What dies under Ray Serve, and what goes on."""

import os
import signal
import time

import pytest

from ray_model_serving.app import build


@pytest.fixture
def make_times_args(make_args, tmp_path):
    def make(model):
        return {**make_args(cache_root=str(tmp_path / "cache")), "models": [model]}

    return make


def wait_until_running(running_serve, route):
    status = running_serve.status(route).status
    for _ in range(600):
        if status == "RUNNING":
            return
        time.sleep(0.05)
        status = running_serve.status(route).status
    raise AssertionError(f"the application is {status}")


def test_a_replica_that_is_killed_in_the_middle_of_its_load_is_replaced_by_one_that_loads(
    running_serve, deploy, make_times_model, make_times_args
):
    model, route = make_times_model(held=True), running_serve.unique_route()
    deploy(build(make_times_args(model.settings(route))), route, wait=False)
    let_go = model.wait_until_held()
    (pid,) = map(int, model.log.read_text().split())
    os.kill(pid, signal.SIGKILL)
    let_go()
    for _ in range(600):
        if model.builds() == 2:
            break
        time.sleep(0.05)
    go_on = model.wait_until_held()  # no lock, slot or half-made state of the dead one keeps it
    go_on()
    wait_until_running(running_serve, route)
    with running_serve.client() as client:
        assert client.post(route, json={"inputs": [4]}).json() == {"outputs": [8.0]}
        status = client.get(f"{route}/status").json()
    assert status["pid"] != pid
    assert (model.builds(), status["attempts"]) == (2, 1)


def test_requests_go_on_while_the_controller_dies_and_replicas_keep_their_models(
    running_serve, deploy, make_times_model, make_times_args
):
    import ray

    model, route = make_times_model(), running_serve.unique_route()
    deploy(build(make_times_args(model.settings(route))), route)
    controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    with running_serve.client() as client:
        before = client.get(f"{route}/status").json()
        ray.kill(controller, no_restart=False)
        statuses = [client.post(route, json={"inputs": [4]}).status_code for _ in range(20)]
        assert statuses == [200] * 20, "the proxy and the replica need no controller for a request"
        wait_until_running(running_serve, route)  # the new controller finds what ran
        after = client.get(f"{route}/status").json()
        assert client.post(route, json={"inputs": [4]}).json() == {"outputs": [8.0]}
    assert (after["pid"], after["replica_id"]) == (before["pid"], before["replica_id"])
    assert model.builds() == 1, "a controller that starts again has nobody load again"
