"""The warm-up gate on real Serve: it reaches every replica, and says which one is not warm and why."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ray.serve.context import _get_global_client

from ray_model_serving.app import build
from ray_model_serving.serving.warmup_client import APPLICATIONS_PATH
from ray_model_serving.serving.warmup_gate import WarmupGate


@pytest.fixture
def dashboard(running_serve) -> Iterator[str]:
    """The controller's own document, over HTTP as the dashboard of Ray 2.60 has it; the test's Ray runs without one."""
    client = _get_global_client()
    assert client is not None

    class Dashboard(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == APPLICATIONS_PATH
            body = json.dumps(client.get_serve_details(), default=str).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Dashboard)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def gate(dashboard: str, running_serve, route: str, timeout_s: float = 30.0) -> WarmupGate:
    return WarmupGate(address=dashboard, application=route.strip("/"), url=running_serve.url, timeout_s=timeout_s)


def test_it_has_every_lazy_replica_load_and_sends_a_real_request(
    running_serve, deploy, dashboard, make_times_model, make_args, tmp_path
):
    route, model = running_serve.unique_route(), make_times_model()
    args = make_args(cache_root=str(tmp_path / "cache"))
    counts = {"min_replicas": 3, "max_replicas": 3, "num_cpus": 0.2}
    args["models"] = [model.settings(route, load_mode="lazy", **counts)]
    deploy(build(args), route)
    with running_serve.client() as http:
        assert http.post(route, json={"inputs": [1]}).status_code == 200
    assert model.builds() == 1, "a load balancer's choice: one is loaded, two are not"
    (verdict,) = gate(dashboard, running_serve, route).run(lambda text: None)
    assert verdict.ready, verdict
    assert verdict.example_inputs == [3]
    assert [replica.state for replica in verdict.replicas] == ["ready"] * 3
    assert model.builds() == 3, "each loaded once; the one that was loaded did not again"
    (again,) = gate(dashboard, running_serve, route).run(lambda text: None)
    assert again.ready
    assert model.builds() == 3


def test_a_load_that_fails_for_good_ends_the_wait_with_its_cause(
    running_serve, deploy, dashboard, make_times_model, make_args, tmp_path
):
    route = running_serve.unique_route()
    args = make_args(cache_root=str(tmp_path / "cache"))
    args["models"] = [
        make_times_model().settings(route, load_mode="lazy", model_class="serving_fakes:BrokenBuild", num_cpus=0.2)
    ]
    deploy(build(args), route)
    (verdict,) = gate(dashboard, running_serve, route, timeout_s=600).run(lambda text: None)
    assert not verdict.ready
    assert verdict.hopeless, "nobody waits ten minutes for it"
    assert verdict.replicas[0].replica_id in (verdict.cause or "")
    assert "config.json names no layers" in (verdict.cause or "")


def test_when_the_time_is_over_it_names_the_replica_that_still_loads(
    running_serve, deploy, dashboard, make_times_model, make_args, tmp_path, in_background
):
    route, model = running_serve.unique_route(), make_times_model(held=True)
    args = make_args(cache_root=str(tmp_path / "cache"))
    args["models"] = [model.settings(route, load_mode="lazy", num_cpus=0.2)]
    deploy(build(args), route)
    lines: list[str] = []
    answer = in_background(lambda: gate(dashboard, running_serve, route, timeout_s=3).run(lines.append))
    let_go = model.wait_until_held()
    (verdict,) = answer.get()
    let_go()
    assert not verdict.ready
    assert verdict.replicas[0].state == "loading"
    assert "is loading" in (verdict.cause or "")
    assert lines, "somebody who waits is told for what"
