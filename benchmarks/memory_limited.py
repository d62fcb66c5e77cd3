"""Requests that together exceed a memory limit: a plain handler is killed, a replica with the memory guard refuses.

Each case is a process in a cgroup of its own with a hard limit, in which the kernel kills. Both serve the same model
with the same number of requests at once; every request takes its declared memory while it is worked on.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.children import ROOT, CaseFailed

MIB = 1024**2
LIMIT_BYTES = 320 * MIB
REQUEST_BYTES = 64 * MIB
# Serve's own default for max_ongoing_requests (Ray 2.60).
AT_ONCE = 5
REQUESTS = 40
ARRIVALS_AT_ONCE = 16
HELD_S = 0.1
MOST_TRIES = 200
CASES = ("plain handler", "with the memory guard")
_CONTROLLER = Path("/sys/fs/cgroup/memory")
_TIMEOUT_S = 120


@contextmanager
def memory_group(limit_bytes: int) -> Generator[Path]:
    """A cgroup (v1) of its own with a hard limit, removed at the end. Raises :class:`CaseFailed` where none is."""
    group = own_group() / f"memory-limited-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        raise CaseFailed(f"{group} can't be made: run as root where the v1 memory controller is writable") from error
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield group
    finally:
        _remove(group)


def own_group() -> Path:
    """The directory of this process's group in the v1 memory controller, or its top where that is not visible."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found = _CONTROLLER / path.lstrip("/")
            return found if found.is_dir() else _CONTROLLER
    raise CaseFailed("this machine has no v1 memory controller")


def _remove(group: Path) -> None:
    for _ in range(100):
        try:
            group.rmdir()
        except OSError:  # the kernel still takes its last process apart
            time.sleep(0.05)
        else:
            return
    raise CaseFailed(f"{group} could not be removed")


def run_case(case: str) -> dict[str, Any]:
    """One row: what became of the process and of its requests."""
    with memory_group(LIMIT_BYTES) as group:
        command = [sys.executable, "-m", "benchmarks.memory_limited", "--case", case, "--group", str(group)]
        ended = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
        peak_bytes = int((group / "memory.max_usage_in_bytes").read_text())
    if ended.returncode not in (0, -9):
        raise CaseFailed(f"{case}: exit {ended.returncode}: {ended.stderr[-500:]}")
    statuses = Counter(ended.stdout.split())
    return {
        "case": case,
        "process": "killed by the kernel" if ended.returncode == -9 else "alive at the end",
        "requests": REQUESTS,
        "answered": statuses["200"],
        "refused and sent again": statuses["503"],
        "limit, MiB": LIMIT_BYTES // MIB,
        "peak, MiB": round(peak_bytes / MIB),
    }


def run() -> list[dict[str, Any]]:
    """A row for each case. Raises :class:`CaseFailed` where this machine has no cgroup to limit."""
    return [run_case(case) for case in CASES]


class Hungry:
    """The model of both cases: each input takes its memory, for a moment."""

    def predict(self, inputs: Sequence[Any]) -> list[int]:
        taken = [bytearray(b"x") * REQUEST_BYTES for _ in inputs]
        time.sleep(HELD_S)
        return [len(block) for block in taken]


class HungryWorker(Hungry):
    """As :class:`ModelWorker` looks to the service, with nothing to load."""

    phase: str | None = None
    progress: Any = None
    report: dict[str, Any] | None = None
    snapshot_id: str | None = None

    def load(self) -> None: ...
    def warm_up(self) -> None: ...
    def free(self) -> None: ...
    def close(self) -> None: ...


class NoMetrics:
    """An instrument that keeps nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def set(self, value: float, tags: dict[str, str]) -> None: ...
    def inc(self, value: float, tags: dict[str, str]) -> None: ...

    @property
    def Counter(self) -> "type[NoMetrics]":  # noqa: N802 - Ray's name
        return NoMetrics

    Gauge = Histogram = Counter


async def serve(case: str) -> None:
    """Send the requests and print a line for each answer."""
    with ThreadPoolExecutor(max_workers=AT_ONCE) as executor:
        answer = plain_handler(executor) if case == CASES[0] else guarded_service(executor)
        arriving = asyncio.Semaphore(ARRIVALS_AT_ONCE)

        async def one() -> None:
            async with arriving:
                for _ in range(MOST_TRIES):
                    status = await answer()
                    print(status, flush=True)
                    if status == 200:
                        return
                    await asyncio.sleep(HELD_S)  # what Retry-After asks for is a second; this one is impatient

        await asyncio.gather(*(one() for _ in range(REQUESTS)))


def plain_handler(executor: ThreadPoolExecutor) -> Any:
    """As much at once as Serve lets in by default, and nothing that looks at memory."""
    model = Hungry()

    async def answer() -> int:
        await asyncio.get_running_loop().run_in_executor(executor, model.predict, [1])
        return 200

    return answer


def guarded_service(executor: ThreadPoolExecutor) -> Any:
    """The library's service around the same model, with as many requests at once."""
    from ray_model_serving.contract.settings import ServingSettings
    from ray_model_serving.host_memory import LimitReader
    from ray_model_serving.serving.guard import MemoryGuard
    from ray_model_serving.serving.service import ModelService
    from ray_model_serving.telemetry import Telemetry

    limits = {"max_ongoing_requests": AT_ONCE, "max_queued_requests": ARRIVALS_AT_ONCE, "max_batch_size": AT_ONCE}
    model = {
        "name": "hungry", "route": "/hungry", "model_class": "hungry:Hungry", "uri": "file:///hungry/",
        "device": "cpu", "weights_bytes": 1, "host_peak_bytes": 0, "request_bytes": REQUEST_BYTES, "limits": limits,
    }  # fmt: skip
    settings = ServingSettings.from_mapping(
        {"models": [model], "cache_root": "/nowhere", "cache_budget_bytes": 1, "load_deadline_s": 60}
    )
    service = ModelService(
        settings.models[0], HungryWorker(), load_deadline_s=60, executor=executor, telemetry=Telemetry(NoMetrics()),
        problem_with=_no_problem, identity={},
        guard=MemoryGuard(LimitReader().read, fraction=settings.memory_guard_fraction),
    )  # fmt: skip

    async def answer() -> int:
        return (await service.answer("POST", "/hungry", _body())).status

    return answer


def _no_problem(value: object) -> None:
    del value


async def _body() -> AsyncIterator[bytes]:
    yield b'{"inputs": [1]}'


def table(rows: list[dict[str, Any]]) -> str:
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([str(row[name]) for name in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_limited", description=__doc__)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--group", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        (arguments.group / "cgroup.procs").write_text(str(os.getpid()))
        asyncio.run(serve(arguments.case))
        return
    print(table(run()))


if __name__ == "__main__":
    main()
