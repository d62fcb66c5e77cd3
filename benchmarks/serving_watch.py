"""Samples of an application while a benchmark runs: replicas by state, their processes, their anonymous memory."""

import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_PERIOD_S = 0.25
_JOIN_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One moment. ``at_s`` is on the machine's monotonic clock, which all processes share."""

    at_s: float
    running: int
    starting: int
    anonymous_bytes: int
    """Of all replicas together: what counts against a pod's limit and can't be reclaimed."""


class Watch(threading.Thread):
    """Samples one application until it is stopped; lives in the process that has Ray, and asks it under ``turn``."""

    def __init__(self, name: str, turn: threading.Lock) -> None:
        super().__init__(daemon=True)
        self._turn = turn
        self._application = name
        self._samples: list[Sample] = []
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            self._samples.append(_sample(self._application, self._turn))
            self._over.wait(_PERIOD_S)

    def stop(self) -> list[dict[str, Any]]:
        self._over.set()
        self.join(_JOIN_S)
        return [asdict(sample) for sample in self._samples]


def _sample(name: str, turn: threading.Lock) -> Sample:
    from ray import serve

    with turn:
        application = serve.status().applications.get(name)
    states: dict[str, int] = {}
    for deployment in application.deployments.values() if application else ():
        for state, count in deployment.replica_states.items():
            states[str(getattr(state, "value", state))] = states.get(str(getattr(state, "value", state)), 0) + count
    return Sample(
        at_s=time.monotonic(),
        running=states.get("RUNNING", 0),
        starting=states.get("STARTING", 0),
        anonymous_bytes=sum(_anonymous_bytes(pid) for pid in replica_pids(name)),
    )


def replica_pids(name: str) -> list[int]:
    """Processes whose title is that of a Serve replica of the application."""
    wanted = f"ray::ServeReplica:{name}:".encode()
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # gone since
            if path.read_bytes().startswith(wanted):
                found.append(int(path.parent.name))
    return sorted(found)


def _anonymous_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0
