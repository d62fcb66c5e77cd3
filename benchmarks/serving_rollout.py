"""A new snapshot under load: four replicas answer less than half of what they could, and the model is deployed again.

The settings change in the model's URI only. Ours has ``surge`` set, which starts a replica before an old one stops. A
replica of plain Serve downloads by boto3 and loads by torch in its ``__init__``, with Serve's defaults for a rolling
update. A forward pass sleeps 0.1 s and answers with its version, so that the last answer of the old one and the first
of the new one show. Capacity is sampled four times a second.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks import measuring
from benchmarks.children import CaseFailed
from benchmarks.object_store import BUCKET, BenchStore, bench_store
from benchmarks.serving_host import ServeHost, serve_host
from benchmarks.serving_load import Load, Request, quantile, requests
from benchmarks.serving_models import make_model

CASES = ("ours", "plain Serve")
REPLICAS = 4
PREDICT_S = 0.1
RATE = 30.0
_BATCH = 8
_AROUND_S = 3.0
_TMPFS = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One roll-out."""

    seconds: float
    """From the deployment until Serve says that the new version runs everywhere."""
    failed: int
    """Requests without a prediction."""
    sent: int
    least_running: int
    p99_s: float
    mixed_s: float
    """From the first answer of the new version to the last one of the old."""
    from_store: float
    """Bytes of the new version over the model's."""


def mixed_s(found: Sequence[Request], old: str, new: str) -> float:
    """How long both versions answered."""
    last_old = max((one.ended_s for one in found if one.ok and one.version == old), default=0.0)
    first_new = min((one.ended_s for one in found if one.ok and one.version == new), default=last_old)
    return max(0.0, last_old - first_new)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What all roll-outs of a run share."""

    host: ServeHost
    store: BenchStore
    work: Path
    mib: int
    seconds: float


def deployment(case: str, version: str, stage: Stage) -> dict[str, Any]:
    """Factory and arguments of a case and version."""
    if case == "ours":
        given = {
            "uri": f"s3://{BUCKET}/{version}/", "cache_root": str(stage.work / "cache"), "mib": stage.mib,
            "min_replicas": REPLICAS, "max_replicas": REPLICAS, "surge": True,
        }  # fmt: skip
        return {"factory": "benchmarks.serving_models:ours", "arguments": given}
    given = {
        "directory": str(stage.work / "plain"), "endpoint_url": stage.store.capped_url, "prefix": version,
        "num_replicas": REPLICAS, "max_ongoing_requests": _BATCH, "batch": {"max_batch_size": _BATCH},
    }  # fmt: skip
    return {"factory": "benchmarks.serving_plain:plain", "arguments": given}


def measure(stage: Stage, case: str) -> Rollout:
    """Deploy version a, put it under load, deploy version b."""
    for folder in ("cache", "plain"):
        shutil.rmtree(stage.work / folder, ignore_errors=True)
    host = stage.host
    with Load(url=host.url("/rollout"), seconds=stage.seconds, rate=RATE).start() as load:
        try:
            host.call("deploy", name="rollout", **deployment(case, "a", stage))
            load.await_ready()
            mark = stage.store.mark()
            load.go()
            time.sleep(_AROUND_S)
            host.call("watch", name="rollout")
            seconds = host.call("deploy", name="rollout", **deployment(case, "b", stage))
            ended_s = time.monotonic()
            samples = host.call("watched", name="rollout")
            time.sleep(_AROUND_S)
            load.go()
            found = requests(load)
        finally:
            host.call("delete", name="rollout")
    if found[-1].sent_s < ended_s:
        raise CaseFailed(f"the roll-out took {seconds:.0f} s, longer than the load")
    return Rollout(
        seconds=seconds,
        failed=sum(not one.ok for one in found),
        sent=len(found),
        least_running=min(sample["running"] for sample in samples),
        p99_s=quantile([one.latency_s for one in found if one.ok], 0.99),
        mixed_s=mixed_s(found, "a", "b"),
        from_store=stage.store.logged_bytes(mark) / (stage.mib * measuring.MIB),
    )


def run(arguments: argparse.Namespace) -> str:
    """The section of the report."""
    cases = measuring.selected(CASES, arguments.cases)
    with (
        tempfile.TemporaryDirectory(prefix="bench-objects-", dir=_TMPFS if _TMPFS.is_dir() else None) as objects,
        tempfile.TemporaryDirectory(prefix="bench-serving-") as work,
    ):
        for version in ("a", "b"):
            make_model(
                Path(objects) / BUCKET / version, mib=arguments.mib, predict_s=PREDICT_S, version=version,
                log=Path(work) / "loads",
            )  # fmt: skip
        with bench_store(Path(objects)) as store, serve_host(store.capped_url) as host:
            stage = Stage(host=host, store=store, work=Path(work), mib=arguments.mib, seconds=arguments.seconds)
            found = measuring.interleave(cases, arguments.rounds, lambda case: measure(stage, case), "roll-out")
    head = (
        f"{REPLICAS} replicas of a {arguments.mib} MiB model, {RATE:g} requests a second from {_AROUND_S:g} s before "
        f"the roll-out to {_AROUND_S:g} s after it:"
    )
    return f"{head}\n\n{render(found)}"


def render(found: measuring.Rounds[Rollout]) -> str:
    """The table."""
    values = (("seconds", ".1f"), ("failed", ".0f"), ("sent", ".0f"), ("least_running", ".0f"), ("p99_s", ".2f"),
              ("mixed_s", ".1f"), ("from_store", ".2f"))  # fmt: skip
    rows = [
        [case, *(f"{found.spread(case, attrgetter(name)):{form}}" for name, form in values)] for case in found.results
    ]
    header = ["case", "s until the new version runs", "requests without a prediction", "of", "fewest replicas running",
              "p99, s", "s with both versions", "store bytes / model"]  # fmt: skip
    return measuring.table(header, [*rows, *measuring.failure_rows(found.failures, len(header))])


def options() -> argparse.ArgumentParser:
    """Command line; its defaults are what ``python -m benchmarks`` runs."""
    parser = measuring.parser(__doc__, rounds=5)
    parser.add_argument("--seconds", type=float, default=90.0, help="most of load in each round (default %(default)s)")
    parser.add_argument("--mib", type=int, default=64, help="size of the model (default %(default)s)")
    return parser


def main() -> None:
    print(measuring.environment() + "\n")
    print(run(options().parse_args()))


if __name__ == "__main__":
    main()
