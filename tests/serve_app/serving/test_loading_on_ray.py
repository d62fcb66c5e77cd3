"""When a model is loaded, on real Ray Serve: lazy, in the background, and when it fails."""

import functools
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray import serve

from ray_model_serving.app import build
from ray_model_serving.contract.deployments import deployment_options
from ray_model_serving.contract.settings import ServingSettings
from ray_model_serving.host_memory import parse_status
from ray_model_serving.serving.replica import ModelReplica
from ray_model_serving.store.locks import open_lock

# Generous for two busy cores; a status that waits for the load takes as long as the test holds it.
STATUS_P99_S = 1.0


@pytest.fixture
def make_times_args(make_args, tmp_path):
    def make(*models: dict[str, Any], **changes: Any) -> dict[str, Any]:
        return {**make_args(cache_root=str(tmp_path / "cache")), "models": list(models), **changes}

    return make


def strictly_checked(args: dict[str, Any]) -> serve.Application:
    """The application's deployment, but with Serve looking at its health every second."""
    settings = ServingSettings.from_mapping(args)
    options: dict[str, Any] = deployment_options(settings.models[0])
    deployment = serve.deployment(**options, health_check_period_s=1, health_check_timeout_s=3)(ModelReplica)
    return deployment.bind(settings, settings.models[0].name)


def test_many_first_requests_of_a_lazy_model_make_one_load_that_leaves_the_replica_healthy(
    running_serve, deploy, make_times_model, make_times_args, in_background
):  # UR-018
    model, route = make_times_model(factor=3.0, held=True), running_serve.unique_route()
    limits = {"max_ongoing_requests": 32, "max_queued_requests": 32}
    deploy(strictly_checked(make_times_args(model.settings(route, load_mode="lazy", limits=limits))), route)

    with running_serve.client() as client:
        before = client.get(f"{route}/status").json()
        assert (before["state"], model.builds()) == ("unloaded", 0), "a lazy model is not loaded before it is asked"
        first = functools.partial(client.post, route, json={"inputs": [1, 2]})
        answers = [in_background(first) for _ in range(16)]
        go_on = model.wait_until_held()

        # A client that leaves while the model loads: its cancellation must not reach the load.
        with pytest.raises(httpx.ReadTimeout):
            client.post(route, json={"inputs": [1]}, timeout=0.2)

        took_s: list[float] = []
        end = time.monotonic() + 5  # over the health check's time-out, so that a blocked loop would be found out
        while time.monotonic() < end:
            since = time.monotonic()
            status = client.get(f"{route}/status").json()
            took_s.append(time.monotonic() - since)
            assert status["state"] == "loading"
            ready = client.get(f"{route}/ready")
            assert (ready.status_code, ready.json()["state"]) == (503, "loading"), (
                "ready means loaded and warm"
            )  # UR-092
            assert client.get("/-/healthz").status_code == 200, "liveness has nothing to do with a load"  # UR-094
            time.sleep(0.05)
        go_on()
        responses = [answer.get() for answer in answers]
        after = client.get(f"{route}/status").json()
        assert client.get(f"{route}/ready").status_code == 200

    assert [response.json() for response in responses] == [{"outputs": [3.0, 6.0]}] * 16
    assert (model.builds(), after["attempts"]) == (1, 1), "however many ask at once, the model is loaded once"
    assert len(took_s) >= 20
    assert max(took_s) < STATUS_P99_S
    assert after["actor_id"] == before["actor_id"], "a load must never get its replica replaced"
    assert after["state"] == "ready"


def test_a_lazy_request_whose_deadline_ends_first_is_told_to_come_back_and_the_load_goes_on(
    running_serve, deploy, make_times_model, make_times_args
):
    model, route = make_times_model(held=True), running_serve.unique_route()
    settings = model.settings(route, load_mode="lazy", limits={"request_deadline_s": 0.5})
    deploy(build(make_times_args(settings)), route)
    with running_serve.client() as client:
        response = client.post(route, json={"inputs": [1]})
        assert (response.status_code, response.json()["error"]["kind"]) == (503, "loading")
        assert int(response.headers["retry-after"]) >= 1
        model.wait_until_held()()
        for _ in range(100):
            response = client.post(route, json={"inputs": [1]})
            if response.status_code == 200:
                break
        assert response.json() == {"outputs": [2.0]}
    assert model.builds() == 1


def test_a_background_model_gets_no_traffic_before_it_is_loaded_and_warm(
    running_serve, deploy, make_times_model, make_times_args
):
    model, route = make_times_model(held=True), running_serve.unique_route()
    deploy(build(make_times_args(model.settings(route, load_mode="background"))), route, wait=False)
    go_on = model.wait_until_held()
    with running_serve.client(timeout_s=1.0) as client:
        assert running_serve.status(route).status == "DEPLOYING"
        try:
            early = client.post(route, json={"inputs": [1]}).status_code
        except httpx.ReadTimeout:
            early = None  # held back by the proxy
        assert early in (None, 404, 503), "nobody may be answered by a replica that is not ready"
        go_on()
        for _ in range(200):
            if running_serve.status(route).status == "RUNNING":
                break
            time.sleep(0.05)
        status = client.get(f"{route}/status").json()
        assert (status["state"], status["attempts"]) == ("ready", 1)
        assert status["load"]["seconds"]["warm_up"] > 0
        assert client.post(route, json={"inputs": [1]}).json() == {"outputs": [2.0]}


def test_a_background_load_that_can_not_succeed_fails_the_deployment_with_its_cause(
    running_serve, deploy, make_times_model, make_times_args, tmp_path
):
    model, route = make_times_model(), running_serve.unique_route()
    settings = model.settings(route, load_mode="background", uri=f"file://{tmp_path}/nothing-here/")
    with pytest.raises(RuntimeError):
        deploy(build(make_times_args(settings)), route)
    message = running_serve.message(route)
    assert "the model could not be loaded" in message
    assert f"{tmp_path}/nothing-here" in message, "the cause is told where an operator looks first"


def test_a_lazy_load_that_fails_gives_one_clear_error_and_keeps_the_replica(
    running_serve, deploy, make_times_model, make_times_args
):
    model, route = make_times_model(), running_serve.unique_route()
    settings = model.settings(route, load_mode="lazy", model_class="serving_fakes:BrokenBuild")
    deploy(build(make_times_args(settings)), route)
    with running_serve.client() as client:
        before = client.get(f"{route}/status").json()
        errors = [client.post(route, json={"inputs": [1]}) for _ in range(3)]
        after = client.get(f"{route}/status").json()
    assert [response.status_code for response in errors] == [503] * 3
    error = errors[-1].json()["error"]
    assert (error["kind"], error["permanent"]) == ("load_failed", True)
    assert "config.json names no layers" in error["message"]
    assert (after["state"], after["attempts"]) == ("failed", 1)
    assert after["actor_id"] == before["actor_id"]


def test_a_background_load_that_fails_once_for_a_passing_cause_is_tried_again_by_the_same_replica(
    running_serve, deploy, make_times_model, make_times_args
):
    model, route = make_times_model(), running_serve.unique_route()
    settings = model.settings(route, load_mode="background", model_class="serving_fakes:FailsAtFirst")
    deploy(build(make_times_args(settings)), route)
    with running_serve.client() as client:
        status = client.get(f"{route}/status").json()
        assert (status["state"], status["attempts"], status["error"]) == ("ready", 2, None)
        assert client.post(route, json={"inputs": [1]}).json() == {"outputs": [2.0]}
    assert len(set(model.log.read_text().split())) == 1, "one process: Serve saw no failed start"


def test_a_load_that_hangs_over_its_deadline_gets_its_replica_replaced_by_one_that_loads(
    running_serve, deploy, make_times_model, make_times_args
):
    model, route = make_times_model(held=True), running_serve.unique_route()
    args = make_times_args(model.settings(route, load_mode="lazy"), load_deadline_s=1)
    deploy(strictly_checked(args), route)
    with running_serve.client() as client:
        stuck = client.get(f"{route}/status").json()
        response = client.post(route, json={"inputs": [1]})
        assert response.status_code == 503
        assert "load_deadline_s 1" in response.json()["error"]["message"]
        assert response.headers["retry-after"], "another replica may do better"
        for _ in range(300):
            answer = client.get(f"{route}/status")
            if answer.status_code == 200 and answer.json()["actor_id"] != stuck["actor_id"]:
                break
            time.sleep(0.1)
        else:
            raise AssertionError("nobody replaced a replica whose load hangs")
        assert answer.json()["state"] == "unloaded"
    assert model.builds() == 1, "the stuck process began no second load beside the first"


def test_a_replica_that_is_taken_away_during_a_load_leaves_no_process_and_no_lock(
    running_serve, deploy, make_times_model, make_times_args, bucket, tmp_path
):
    model, route = make_times_model(held=True), running_serve.unique_route()
    uri = bucket.put({path.name: path.read_bytes() for path in model.directory.iterdir()})
    limits = {"request_deadline_s": 0.5}
    deploy(build(make_times_args(model.settings(route, load_mode="lazy", uri=uri, limits=limits))), route)
    with running_serve.client() as client:
        assert client.post(route, json={"inputs": [1]}).json()["error"]["kind"] == "loading"
        go_on = model.wait_until_held()
        status = client.get(f"{route}/status").json()
    lock = open_lock(tmp_path / "cache" / "locks" / status["snapshot_id"])
    assert not lock.try_exclusive(), "the load under way keeps its snapshot from being evicted"

    running_serve.delete(route)
    for _ in range(300):
        if not Path(f"/proc/{status['pid']}").exists():
            break
        time.sleep(0.1)
    else:
        raise AssertionError("the load kept the process")
    go_on()
    assert lock.try_exclusive()
    lock.release()
    assert model.builds() == 1


def test_a_burst_over_the_limits_is_refused_while_the_first_still_work_and_takes_no_memory(
    running_serve, deploy, make_times_model, make_times_args, in_background
):  # UR-015
    model, route = make_times_model(held=True), running_serve.unique_route()
    limits = {"max_ongoing_requests": 2, "max_queued_requests": 3, "busy_status": 429}
    deploy(build(make_times_args(model.settings(route, load_mode="lazy", limits=limits))), route)
    with running_serve.client() as client:
        pid = client.get(f"{route}/status").json()["pid"]
        burst = [in_background(functools.partial(client.post, route, json={"inputs": [1]})) for _ in range(9)]
        go_on = model.wait_until_held()
        before = anonymous_bytes(pid)
        refused = client.post(route, json={"inputs": [1]})
        for _ in range(20):
            if refused.status_code == 429:
                break
            refused = client.post(route, json={"inputs": [1]})
        assert refused.json()["error"]["kind"] == "busy", "refused while those before it are still worked on"
        for _ in range(50):
            client.post(route, json={"inputs": [1]})
        assert anonymous_bytes(pid) - before < 16 * 1024**2, "what is refused is not kept"
        go_on()
        statuses = sorted(answer.get().status_code for answer in burst)
    assert set(statuses) <= {200, 429, 503}
    assert statuses.count(200) <= 5, "two that work and three that wait"
    assert statuses.count(200) >= 2


def anonymous_bytes(pid: int) -> int:
    return parse_status(Path(f"/proc/{pid}/status").read_text()).anon_bytes
