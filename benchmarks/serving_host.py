"""A Ray Serve of the benchmark's own, driven over one process: commands in, answers out, all of it gone at the end.

As a program it is that process. It starts Ray on loopback, prints ``ready``, then takes a JSON object a line with the
name of a function of :class:`Commands` and its arguments.
"""

import importlib
import json
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.children import ROOT, CaseFailed, Child
from benchmarks.object_store import free_ports
from benchmarks.peers import client_environment
from benchmarks.serving_watch import Watch, replica_pids

# As short as Ray needs for its sockets, whose paths may have 107 bytes.
_RAY_ROOT = "/tmp"
_LOGICAL_CPUS = 16
_OBJECT_STORE_BYTES = 200 * 1024**2
_LOGICAL_MEMORY_BYTES = 64 * 1024**3
_STOP_S = 20.0
_DEPLOY_S = 170.0
_POLL_S = 0.05
NO_STORE = "http://127.0.0.1:9"


class ServeHost:
    """The parent's side."""

    def __init__(self, child: Child, port: int) -> None:
        self._child = child
        self.port = port

    def url(self, route: str) -> str:
        return f"http://127.0.0.1:{self.port}{route}"

    def tell(self, do: str, **arguments: Any) -> None:
        """Start a command; :meth:`answer` waits for its end."""
        self._child.go(json.dumps({"do": do, **arguments}))

    def answer(self) -> Any:
        """What the command returned. Raises :class:`CaseFailed` where it raised, or took longer than a child may."""
        result = self._child.result()
        if "failed" in result:
            raise CaseFailed(result["failed"])
        return result["value"]

    def call(self, do: str, **arguments: Any) -> Any:
        self.tell(do, **arguments)
        return self.answer()


@contextmanager
def serve_host(endpoint_url: str = NO_STORE) -> Generator[ServeHost]:
    """Ray with Serve, whose replicas find the store at ``endpoint_url``. Files and processes end with the block."""
    signal.signal(signal.SIGTERM, _end)
    root = Path(tempfile.mkdtemp(prefix="ray-", dir=_RAY_ROOT))
    (port,) = free_ports(1)
    env = {
        **client_environment(endpoint_url),
        # Ray 2.60 writes a token into the home directory unless it is given one, and libraries their caches.
        "HOME": str(root),
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(ROOT),
    }
    try:
        with Child("benchmarks.serving_host", [str(root), str(port)], env=env) as child:
            child.await_ready()
            host = ServeHost(child, port)
            try:
                yield host
            finally:
                with suppress(OSError):
                    host.tell("stop")
                child.wait(_STOP_S)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(f"ended by signal {number}")


class Commands:
    """The child's side. Every public function may be told over the pipe."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}
        # Ray Serve (2.60) registers modules for pickling by value while it reads a status or makes a deployment, and
        # raises where two threads of a process do so at once.
        self._serve = threading.Lock()

    def deploy(self, name: str, factory: str, arguments: dict[str, Any]) -> float:
        """Run ``factory(route, **arguments)`` as application ``name`` under ``/name``; seconds until it runs."""
        from ray import serve

        started = time.monotonic()
        with self._serve:
            application = _imported(factory)(f"/{name}", **arguments)
            target = serve.RunTarget(application, name=name, route_prefix=f"/{name}")
            serve.run_many([target], wait_for_applications_running=False)
        while time.monotonic() - started < _DEPLOY_S:
            with self._serve:
                found = serve.status().applications[name]
            if found.status == "RUNNING":
                return time.monotonic() - started
            if found.status == "DEPLOY_FAILED":
                raise RuntimeError(f"{name} failed: {found.message}")
            time.sleep(_POLL_S)
        raise TimeoutError(f"{name} does not run after {_DEPLOY_S:g} s")

    def delete(self, name: str) -> None:
        from ray import serve

        serve.delete(name)

    def watch(self, name: str) -> None:
        """Begin to sample an application's replicas."""
        self._watches[name] = Watch(name, self._serve)
        self._watches[name].start()

    def watched(self, name: str) -> list[dict[str, Any]]:
        """End it; the samples since :meth:`watch`."""
        return self._watches.pop(name).stop()

    def pids(self, name: str) -> list[int]:
        """Processes of an application's replicas."""
        return replica_pids(name)

    def run(self, function: str, arguments: dict[str, Any]) -> Any:
        """A benchmark's own function in the process that has Ray."""
        return _imported(function)(**arguments)


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def main() -> None:
    import ray
    from ray import serve

    root, port = sys.argv[1:]
    # Whatever a library prints goes to the log; the pipe carries answers only.
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ray.init(
        address="local",
        num_cpus=_LOGICAL_CPUS,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        _memory=_LOGICAL_MEMORY_BYTES,
        _node_ip_address="127.0.0.1",
        _temp_dir=root,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
        commands = Commands()
        print("ready", file=pipe, flush=True)
        for line in sys.stdin:
            told = json.loads(line)
            do = told.pop("do")
            if do == "stop":
                break
            try:
                answer = {"value": getattr(commands, do)(**told)}
            except Exception as error:
                answer = {"failed": f"{type(error).__name__}: {error}"[:300]}
            print(json.dumps(answer), file=pipe, flush=True)
    finally:
        # The cluster is this process's own: ending it ends Serve, its replicas and its proxy.
        ray.shutdown()


if __name__ == "__main__":
    main()
