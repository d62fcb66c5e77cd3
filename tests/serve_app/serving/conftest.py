"""One Ray with Serve for all tests here that need it, and small models on disk."""

import errno
import functools
import itertools
import json
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save_file

from demo.emulator import free_port
from emulators.s3 import ENVIRONMENT, S3Emulator

# As short as Ray needs for its sockets, whose paths may have 107 bytes.
_RAY_ROOT = "/tmp"
_IMPORTABLE = Path(__file__).parent / "importable"
_EXAMPLES = Path(__file__).parents[3] / "serve_app" / "examples"
_MODEL = {
    "name": "embed",
    "route": "/embed",
    "model_class": "ray_model_serving.models.text_embedding:TextEmbedding",
    "uri": "s3://models/minilm/",
    "device": "cpu",
    "weights_bytes": 90_868_376,
    "host_peak_bytes": 64 * 1024**2,
}


@pytest.fixture
def make_args() -> Callable[..., dict[str, Any]]:
    """ServingSettings in plain form: one small CPU model, with what a test changes in it."""

    def make(*models: dict[str, Any], **changes: Any) -> dict[str, Any]:
        return {
            "models": [{**_MODEL, **model} for model in models or ({},)],
            "cache_root": "/model-cache",
            "cache_budget_bytes": 1024**3,
            "cache_medium": "directory",
            "load_deadline_s": 60,
            **changes,
        }

    return make


@dataclass(frozen=True)
class TimesModel:
    """A model directory for ``serving_fakes``."""

    directory: Path
    log: Path
    hold: Path

    def settings(self, route: str, **changes: Any) -> dict[str, Any]:
        return {
            "name": route.strip("/").replace("/", "-"),
            "route": route,
            "model_class": "serving_fakes:Times",
            "uri": f"file://{self.directory}/",
            "device": "cpu",
            "weights_bytes": 4,
            "host_peak_bytes": 64 * 1024**2,
            "request_bytes": 1024**2,
            "num_cpus": 0.5,
            **changes,
        }

    def builds(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def wait_until_held(self) -> Callable[[], None]:
        """Return once a build waits at the pipe, with what lets it go on."""
        for _ in range(3000):
            try:
                pipe = os.open(self.hold, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:  # nobody reads yet
                    raise
                time.sleep(0.02)
            else:
                return functools.partial(os.close, pipe)
        raise AssertionError("no build began within a minute")


@pytest.fixture
def make_times_model(tmp_path) -> Callable[..., TimesModel]:
    numbers = itertools.count()

    def make(factor: float = 2.0, *, held: bool = False) -> TimesModel:
        root = tmp_path / f"model-{next(numbers)}"
        model = TimesModel(directory=root / "files", log=root / "builds.log", hold=root / "hold")
        model.directory.mkdir(parents=True)
        os.mkfifo(model.hold)
        config = {"log": str(model.log), **({"hold": str(model.hold)} if held else {})}
        (model.directory / "config.json").write_text(json.dumps(config))
        save_file({"weight": torch.tensor([[factor]])}, model.directory / "model.safetensors")
        return model

    return make


@dataclass(frozen=True)
class RunningServe:
    """Ray Serve on loopback. Every application has its own name and a route of its own."""

    url: str
    numbers: Iterator[int]
    root: Path

    def unique_route(self) -> str:
        return f"/app-{next(self.numbers)}"

    def run(self, application: Any, route_prefix: str, *, wait: bool = True) -> None:
        from ray import serve

        target = serve.RunTarget(application, name=route_prefix.strip("/"), route_prefix=route_prefix)
        serve.run_many([target], wait_for_applications_running=wait)

    def delete(self, route_prefix: str) -> None:
        from ray import serve

        serve.delete(route_prefix.strip("/"), _blocking=False)

    def status(self, route_prefix: str) -> Any:
        from ray import serve

        return serve.status().applications[route_prefix.strip("/")]

    def message(self, route_prefix: str) -> str:
        """What Serve says about the deployment of an application with one model."""
        return self.status(route_prefix).deployments[route_prefix.strip("/")].message

    def exported_metrics(self) -> str:
        """What Prometheus would read from the node."""
        import ray

        port = ray.nodes()[0]["MetricsExportPort"]
        return httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10, trust_env=False).text

    def log_records(self, deployment: str) -> list[dict[str, Any]]:
        """What the replicas of a deployment wrote to their log files, which have one JSON object a line."""
        files = (self.root / "session_latest" / "logs" / "serve").glob(f"replica_*_{deployment}_*.log")
        return [json.loads(line) for file in sorted(files) for line in file.read_text().splitlines()]

    def client(self, timeout_s: float = 30.0) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=timeout_s, trust_env=False)


@pytest.fixture(scope="session")
def running_serve(s3: S3Emulator) -> Iterator[RunningServe]:
    """Real Ray and Serve, on loopback and without any report to the outside, gone at the end with all its files."""
    root = Path(tempfile.mkdtemp(prefix="ray-", dir=_RAY_ROOT))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray writes one into the home directory
        import ray
        from ray import serve

        try:
            port = free_port()
            # What the replicas inherit; undone at once, since other tests of this process must not see it.
            with pytest.MonkeyPatch.context() as inherited:
                inherited.setenv("PYTHONPATH", f"{_IMPORTABLE}{os.pathsep}{_EXAMPLES}")
                for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": s3.endpoint_url}.items():
                    inherited.setenv(name, value)
                ray.init(
                    num_cpus=16,
                    include_dashboard=False,
                    object_store_memory=100 * 1024**2,
                    _memory=32 * 1024**3,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=str(root),
                    log_to_driver=False,
                    _system_config={"metrics_report_interval_ms": 500},
                )
                serve.start(http_options={"host": "127.0.0.1", "port": port})
            yield RunningServe(url=f"http://127.0.0.1:{port}", numbers=itertools.count(1), root=root)
        finally:
            serve.shutdown()
            ray.shutdown()
            shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def deploy(running_serve) -> Iterator[Callable[..., None]]:
    """Runs applications for one test."""
    prefixes: list[str] = []

    def run(application: Any, route_prefix: str, *, wait: bool = True) -> None:
        prefixes.append(route_prefix)
        running_serve.run(application, route_prefix, wait=wait)

    yield run
    for prefix in prefixes:
        running_serve.delete(prefix)


@pytest.fixture
def in_background() -> Iterator[Callable[..., "Answer"]]:
    """Runs a blocking call in a thread of its own."""
    answers: list[Answer] = []

    def start(function: Callable[[], Any]) -> Answer:
        answers.append(Answer(function))
        return answers[-1]

    yield start
    for answer in answers:
        answer.join()


class Answer(threading.Thread):
    """What a call in another thread returned or raised."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._value: Any = None
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._function()
        except Exception as error:
            self._error = error

    def get(self, timeout_s: float = 60.0) -> Any:
        self.join(timeout_s)
        assert not self.is_alive(), f"no answer within {timeout_s} s"
        if self._error:
            raise self._error
        return self._value
