"""``ray-model warmup``: what it prints, its exit codes, and every kind of bad input. Replicas are in the Ray tests."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

from ray_model_serving.cli.app import app


class Cluster:
    """A dashboard and a proxy in one server, with what a test says of them."""

    def __init__(self) -> None:
        self.token: str | None = None
        self.page: str | None = None
        self.replicas: list[dict[str, Any]] = [{"replica_id": "a", "state": "RUNNING"}]
        self.deployment: dict[str, Any] = {"target_num_replicas": 1, "status": "HEALTHY", "message": ""}
        self.status, self.message = "RUNNING", ""
        self.answers: list[dict[str, Any]] = [
            {"replica_id": "a", "ready": True, "state": "ready", "why_not_ready": None, "error": None}
        ]
        self.prediction = 200
        self.seen: list[tuple[str, str | None, bytes]] = []
        self.port, self.host, self.node_ip = 0, "0.0.0.0", "127.0.0.1"

    def respond(self, path: str, token: str | None, body: bytes) -> tuple[int, str]:
        self.seen.append((path, token, body))
        if path == "/embed/warmup":
            return 200, json.dumps({"replicas": self.answers, "example_inputs": ["a text"]})
        if path == "/embed":
            return self.prediction, json.dumps({"outputs": [1]})
        if self.token and token != f"Bearer {self.token}":
            return 401, "Unauthorized: Missing authentication token"
        return 200, self.page or json.dumps(self.document())

    def document(self) -> dict[str, Any]:
        application: dict[str, Any] = {"status": self.status, "message": self.message, "route_prefix": "/embed"}
        application["deployments"] = {"embed": {**self.deployment, "replicas": self.replicas}}
        proxies = {"node": {"node_ip": self.node_ip, "status": "HEALTHY"}}
        return {
            "http_options": {"host": self.host, "port": self.port},
            "proxies": proxies,
            "applications": {"app": application},
        }


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    state = Cluster()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, text = state.respond(self.path, self.headers.get("authorization"), body)
            self.send_response(status)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def warmup(cluster, monkeypatch, tmp_path) -> Callable[..., Any]:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)

    def run(*options: str) -> Any:
        address = ("--address", f"http://127.0.0.1:{cluster.port}")
        return CliRunner().invoke(app, ["warmup", *address, "--timeout-s", "1", *options])

    return run


def test_ready_is_0_after_a_real_request_with_the_models_own_example(warmup, cluster):
    result = warmup("--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["ready"] is True
    assert document["models"][0]["replicas"][0]["replica_id"] == "a"
    assert cluster.seen[-1] == ("/embed", None, b'{"inputs": ["a text"]}')


def test_a_proxy_on_loopback_only_is_asked_there_and_not_at_its_nodes_address(warmup, cluster):
    cluster.node_ip, cluster.host = "192.0.2.1", "127.0.0.1"
    assert warmup().exit_code == 0


def test_inputs_and_body_replace_the_example(warmup, cluster, tmp_path):
    assert warmup("--inputs", "[7]").exit_code == 0
    assert cluster.seen[-1][2] == b'{"inputs": [7]}'
    (tmp_path / "body").write_bytes(b"as it is")
    assert warmup("--body", str(tmp_path / "body")).exit_code == 0
    assert cluster.seen[-1][2] == b"as it is"


def test_a_replica_that_did_not_answer_is_not_ready(warmup, cluster):
    cluster.replicas.append({"replica_id": "b", "state": "RUNNING"})
    cluster.deployment["target_num_replicas"] = 2
    result = warmup()
    assert result.exit_code == 1
    assert "1 of 2 replicas warm, not ready: replica b is RUNNING" in result.stdout


def failed_load(cluster: Cluster) -> None:
    error = {"message": "the model could not be loaded: no such key", "permanent": True}
    cluster.answers = [{"replica_id": "a", "ready": False, "state": "failed", "error": error, "why_not_ready": "x"}]


def starting(cluster: Cluster) -> None:
    cluster.replicas = [{"replica_id": "a", "state": "STARTING"}]
    cluster.deployment["message"] = "no node has 1 GPU"


def scaled_to_zero(cluster: Cluster) -> None:
    cluster.replicas, cluster.deployment["target_num_replicas"] = [], 0


def failed_deploy(cluster: Cluster) -> None:
    cluster.status, cluster.message = "DEPLOY_FAILED", "models[0].uri: bad"


def bad_prediction(cluster: Cluster) -> None:
    cluster.prediction = 500


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (failed_load, "replica a is failed: the model could not be loaded: no such key"),
        (starting, "replica a is STARTING: no node has 1 GPU"),
        (scaled_to_zero, "it is scaled to zero"),
        (failed_deploy, "the application is DEPLOY_FAILED: models[0].uri: bad"),
        (bad_prediction, "was answered 500"),
    ],
)
def test_what_is_not_ready_is_1_with_its_cause(warmup, cluster, change, said):
    change(cluster)
    result = warmup()
    assert result.exit_code == 1
    assert said in result.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--model", "other"), "there is no 'other'"),
        (("--application", "other"), "there is no 'other'"),
        (("--inputs", "{"), "is not JSON"),
        (("--inputs", "[]"), "at least one input"),
        (("--inputs", "[1]", "--body", "x"), "exclude each other"),
        (("--body", "/no/such/file"), "--body: "),
        (("--address", "head:8265"), "must be http://host:port"),
        (("--url", "ftp://x"), "--url: got"),
        (("--timeout-s", "0"), "--timeout-s"),
    ],
)
def test_bad_input_is_2_and_says_which(warmup, options, said):
    result = warmup(*options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_page_that_is_not_the_dashboards_is_bad_input(warmup, cluster):
    cluster.page = "<html>welcome</html>"
    result = warmup()
    assert result.exit_code == 2
    assert "not Serve's document: <html>welcome" in result.stderr


def test_nobody_at_the_address_is_1_and_says_what_was_asked():
    result = CliRunner().invoke(app, ["warmup", "--address", "http://127.0.0.1:1", "--timeout-s", "1"])
    assert result.exit_code == 1
    assert "GET http://127.0.0.1:1/api/serve/applications/" in result.stderr


def test_the_clusters_token_goes_to_the_dashboard_and_nowhere_else(warmup, cluster, monkeypatch, tmp_path):  # UR-031
    cluster.token = "secret"
    refused = warmup()
    assert refused.exit_code == 2
    assert "no token was found" in refused.stderr
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    assert warmup().exit_code == 0
    assert {token for path, token, _ in cluster.seen if path.startswith("/embed")} == {None}
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another")
    wrong = warmup()
    assert "is not the cluster's" in wrong.stderr
    assert "another" not in wrong.stderr, "a token is never printed"
