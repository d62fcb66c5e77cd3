"""A burst: from one replica to eight of a 256 MiB model, while requests come in at more than twice what one can answer.

Both sides have the same bounds: 1 to 8 replicas, 8 requests at work and 16 waiting, batches of 8, the same target,
look-back and delays of the autoscaler. A replica of plain Serve downloads by boto3 and loads by torch in its
``__init__``; ours loads with the package's defaults, so one at a time on a node, and scales by the package's policy.
The store is nginx, each connection capped. A forward pass sleeps 0.2 s. Bytes, loads and memory count from the
deployment of the first replica on.
"""

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import measuring
from benchmarks.children import ROOT, CaseFailed
from benchmarks.object_store import BUCKET, BenchStore, bench_store
from benchmarks.serving_chart import draw
from benchmarks.serving_host import ServeHost, serve_host
from benchmarks.serving_load import Load, Request, per_second, quantile, requests
from benchmarks.serving_models import make_model, most_at_once

CASES = ("ours", "plain Serve")
MOST = 8
PREDICT_S = 0.2
RATE = 100.0
CHART = ROOT / "docs" / "serving-burst.svg"
_AUTOSCALING = {"look_back_period_s": 11, "upscale_delay_s": 11, "downscale_delay_s": 90}
_TARGET = 2
_BATCH = 8
_QUEUED = 16
_PREFIX = "model"
_TMPFS = Path("/dev/shm")
_GONE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Burst:
    """One burst. ``series`` is what the picture shows."""

    capacity_s: float
    """From the first request until all replicas run."""
    errors: int
    """Requests that were refused, failed or had no answer."""
    failed: int
    """Of those, the ones that were not told to come back (503 or 429)."""
    p99_s: float
    loads_at_once: int
    from_store: float
    """Bytes over the model's."""
    peak_bytes: int
    """Anonymous memory of all replicas together."""
    series: dict[str, Any]


@contextmanager
def _sent(store: BenchStore, period_s: float = 0.25) -> Generator[list[tuple[float, int]]]:
    """Bytes that the store sent, over time, while the block runs."""
    samples: list[tuple[float, int]] = []
    over = threading.Event()

    def sample() -> None:
        start = store.sent_bytes_now()
        while not over.is_set():
            samples.append((time.monotonic(), store.sent_bytes_now() - start))
            over.wait(period_s)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What all bursts of a run share."""

    host: ServeHost
    store: BenchStore
    work: Path
    log: Path
    mib: int
    seconds: float


def deployment(case: str, stage: Stage) -> dict[str, Any]:
    """Factory and arguments of a case."""
    if case == "ours":
        given = {
            "uri": f"s3://{BUCKET}/{_PREFIX}/", "cache_root": str(stage.work / "cache"), "mib": stage.mib,
            "max_replicas": MOST, "autoscaling": {"target_ongoing_requests": _TARGET, **_AUTOSCALING},
            "limits": {"max_ongoing_requests": _BATCH, "max_queued_requests": _QUEUED, "max_batch_size": _BATCH},
        }  # fmt: skip
        return {"factory": "benchmarks.serving_models:ours", "arguments": given}
    scaling = {"min_replicas": 1, "max_replicas": MOST, "target_ongoing_requests": _TARGET, **_AUTOSCALING}
    given = {
        "directory": str(stage.work / "plain"), "endpoint_url": stage.store.capped_url, "prefix": _PREFIX,
        "autoscaling_config": scaling,
        "max_ongoing_requests": _BATCH, "max_queued_requests": _QUEUED, "batch": {"max_batch_size": _BATCH},
    }  # fmt: skip
    return {"factory": "benchmarks.serving_plain:plain", "arguments": given}


def measure(stage: Stage, case: str) -> Burst:
    """One burst against an application that starts with an empty node."""
    for folder in ("cache", "plain"):
        shutil.rmtree(stage.work / folder, ignore_errors=True)
    stage.log.unlink(missing_ok=True)
    mark, host = stage.store.mark(), stage.host
    with _sent(stage.store) as sent, Load(url=host.url("/burst"), seconds=stage.seconds, rate=RATE).start() as load:
        try:
            host.call("deploy", name="burst", **deployment(case, stage))
            load.await_ready()
            host.call("watch", name="burst")
            start_s = time.monotonic()
            load.go()
            found = requests(load)
            samples = host.call("watched", name="burst")
        finally:
            host.call("delete", name="burst")
            _await_end(host)
    full = next((sample["at_s"] for sample in samples if sample["running"] >= MOST), None)
    if full is None:
        most = max(sample["running"] for sample in samples)
        raise CaseFailed(f"{most} of {MOST} replicas ran after {stage.seconds:g} s of load")
    return Burst(
        capacity_s=full - start_s,
        errors=sum(not one.ok for one in found),
        failed=sum(not one.ok and not one.refused for one in found),
        p99_s=quantile([one.latency_s for one in found if one.ok], 0.99),
        loads_at_once=most_at_once(stage.log),
        from_store=stage.store.logged_bytes(mark) / (stage.mib * measuring.MIB),
        peak_bytes=max(sample["anonymous_bytes"] for sample in samples),
        series=series(start_s, stage, found, samples, sent),
    )


def series(
    start_s: float, stage: Stage, found: Sequence[Request], samples: list[dict[str, Any]], sent: list[tuple[float, int]]
) -> dict[str, Any]:
    """What the picture shows, in seconds since the first request."""
    seconds = int(stage.seconds)
    return {
        "at_s": [sample["at_s"] - start_s for sample in samples],
        "running": [sample["running"] for sample in samples],
        "starting": [sample["starting"] for sample in samples],
        "anonymous_gib": [sample["anonymous_bytes"] / 1024**3 for sample in samples],
        "ok": per_second(found, lambda one: one.ok, start_s, seconds),
        "refused": per_second(found, lambda one: one.refused, start_s, seconds),
        "failed": per_second(found, lambda one: not one.ok and not one.refused, start_s, seconds),
        "sent_at_s": [at - start_s for at, _ in sent],
        "sent_models": [count / (stage.mib * measuring.MIB) for _, count in sent],
    }


def _await_end(host: ServeHost) -> None:
    deadline = time.monotonic() + _GONE_S
    while host.call("pids", name="burst"):
        if time.monotonic() > deadline:
            raise CaseFailed(f"its replicas were still there {_GONE_S:g} s after it was deleted")
        time.sleep(0.2)


def run(arguments: argparse.Namespace) -> str:
    """The section of the report; draws the picture of the last round."""
    cases = measuring.selected(CASES, arguments.cases)
    with (
        tempfile.TemporaryDirectory(prefix="bench-objects-", dir=_TMPFS if _TMPFS.is_dir() else None) as objects,
        tempfile.TemporaryDirectory(prefix="bench-serving-") as work,
    ):
        log = Path(work) / "loads"
        model = Path(objects) / BUCKET / _PREFIX
        make_model(model, mib=arguments.mib, predict_s=PREDICT_S, version="a", log=log)
        with bench_store(Path(objects)) as store, serve_host(store.capped_url) as host:
            stage = Stage(
                host=host, store=store, work=Path(work), log=log, mib=arguments.mib, seconds=arguments.seconds
            )
            found = measuring.interleave(cases, arguments.rounds, lambda case: measure(stage, case), "burst")
    title = f"From 1 to {MOST} replicas of a {arguments.mib} MiB model at {RATE:g} requests a second"
    draw(title, {case: rounds[-1].series for case, rounds in found.results.items()}, arguments.chart)
    head = f"{arguments.rounds} rounds of {arguments.seconds:g} s at {RATE:g} requests a second. The last round:"
    return f"{head}\n\n![{title}]({arguments.chart.name})\n\n{render(found)}"


def render(found: measuring.Rounds[Burst]) -> str:
    """The table."""
    rows = [
        [
            case,
            f"{found.spread(case, lambda one: one.capacity_s):.1f}",
            f"{found.spread(case, lambda one: one.errors):.0f}",
            f"{found.spread(case, lambda one: one.failed):.0f}",
            f"{found.spread(case, lambda one: one.p99_s):.2f}",
            f"{found.spread(case, lambda one: one.loads_at_once):.0f}",
            f"{found.spread(case, lambda one: one.from_store):.2f}",
            f"{found.spread(case, lambda one: one.peak_bytes / 1024**3):.2f}",
        ]
        for case in found.results
    ]
    header = ["case", "s until 8 replicas run", "requests without a prediction", "of them not refused in order",
              "p99 of answered, s", "most loads at once", "store bytes / model",
              "peak anonymous GiB, all replicas"]  # fmt: skip
    return measuring.table(header, [*rows, *measuring.failure_rows(found.failures, len(header))])


def options() -> argparse.ArgumentParser:
    """Command line; its defaults are what ``python -m benchmarks`` runs."""
    parser = measuring.parser(__doc__, rounds=5)
    parser.add_argument("--seconds", type=float, default=75.0, help="of load in each round (default %(default)s)")
    parser.add_argument("--mib", type=int, default=256, help="size of the model (default %(default)s)")
    parser.add_argument("--chart", type=Path, default=CHART, help="where the picture goes (default %(default)s)")
    return parser


def main() -> None:
    print(measuring.environment() + "\n")
    print(run(options().parse_args()))


if __name__ == "__main__":
    main()
