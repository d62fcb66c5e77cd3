"""Four times the requests that the replicas can answer: what becomes of those accepted, and of the rest.

Two replicas whose forward pass takes 0.2 s for a batch of any size (it sleeps: the CPUs are not the limit). Each round
measures one case without load (one client), at its peak (the better of two closed loops, with as many clients as the
batches hold and with twice as many), and then with an open loop at four times its own peak. Ours has the package's
default limits. Plain Serve has its own defaults, with ``@serve.batch``; a request without an answer 3 s after the
load's end counts as given up. A refusal is a 503 or 429.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks import measuring
from benchmarks.children import CaseFailed
from benchmarks.serving_host import ServeHost, serve_host
from benchmarks.serving_load import NOT_SENT, Load, Request, quantile
from benchmarks.serving_models import make_model

PREDICT_S = 0.2
REPLICAS = 2
TIMES = 4
BATCH = 8
_MS = 1000
_PEAK_S = 3.0

CASES: dict[str, dict[str, Any]] = {
    "ours": {"limits": {}},
    "plain Serve": {},
}


@dataclass(frozen=True, kw_only=True)
class Overload:
    """One round of one case. Latencies in milliseconds, rates a second."""

    unloaded_p99_ms: float
    peak: float
    offered: float
    answered: float
    answered_p50_ms: float
    answered_p99_ms: float
    refused: float
    """Part of all requests."""
    refused_p50_ms: float
    refused_p99_ms: float
    failed: float
    """Part of all requests that got another error, or no answer."""
    replicas_lost: int

    @property
    def p99_factor(self) -> float:
        return self.answered_p99_ms / self.unloaded_p99_ms

    @property
    def kept(self) -> float:
        """Throughput over that at the peak."""
        return self.answered / self.peak


def overload_of(found: Sequence[Request], *, seconds: float) -> dict[str, float]:
    """What the fields of :class:`Overload` say of the requests under load; throughput counts answers within it."""
    answered = [one.latency_s * _MS for one in found if one.ok]
    refused = [one.latency_s * _MS for one in found if one.refused]
    end = found[0].sent_s + seconds
    return {
        "answered": sum(one.ok and one.ended_s <= end for one in found) / seconds,
        "answered_p50_ms": quantile(answered, 0.5),
        "answered_p99_ms": quantile(answered, 0.99),
        "refused": len(refused) / len(found),
        "refused_p50_ms": quantile(refused, 0.5),
        "refused_p99_ms": quantile(refused, 0.99),
        "failed": 1 - (len(answered) + len(refused)) / len(found),
    }


def measure(host: ServeHost, name: str, seconds: float) -> Overload:
    """One case that is deployed: unloaded, peak, overload."""
    url = host.url(f"/{name}")
    before = host.call("pids", name=name)
    unloaded = [one.latency_s for one in Load(url=url, seconds=3).run() if one.ok]
    peak = max(_peak(url, times) for times in (1, 2))
    if not unloaded or not peak:
        raise CaseFailed("it answers nothing, even without load")
    found = Load(url=url, seconds=seconds, rate=TIMES * peak).run()
    if any(one.status == NOT_SENT for one in found):
        raise CaseFailed("more requests than the benchmark keeps open were without an answer")
    return Overload(
        unloaded_p99_ms=quantile(unloaded, 0.99) * _MS,
        peak=peak,
        offered=len(found) / seconds,
        **overload_of(found, seconds=seconds),
        replicas_lost=len(set(before) - set(host.call("pids", name=name))),
    )


def _peak(url: str, times: int) -> float:
    """Answers a second with that many batches' clients at each replica; the first second fills the batches."""
    full = Load(url=url, seconds=_PEAK_S, clients=REPLICAS * BATCH * times).run()
    return sum(one.ok and 1 < one.ended_s - full[0].sent_s <= _PEAK_S for one in full) / (_PEAK_S - 1)


def run(arguments: argparse.Namespace) -> str:
    """The section of the report."""
    cases = measuring.selected(list(CASES), arguments.cases)
    with tempfile.TemporaryDirectory(prefix="bench-serving-") as work, serve_host() as host:
        model = Path(work) / "model"
        make_model(model, predict_s=PREDICT_S, version="a", log=Path(work) / "loads")
        names = {case: f"case-{number}" for number, case in enumerate(cases)}
        for case, name in names.items():
            host.call("deploy", name=name, **deployment(case, model))
        found = measuring.interleave(
            cases, arguments.rounds, lambda case: measure(host, names[case], arguments.seconds), "overload"
        )
    head = f"{arguments.rounds} rounds of {arguments.seconds:g} s at {TIMES}x:"
    return f"{head}\n\n{render(found)}"


def deployment(case: str, model: Path) -> dict[str, Any]:
    """Factory and arguments of a case."""
    if case.startswith("ours"):
        cache = str(model.parent / "cache")
        given = {"uri": f"file://{model}/", "cache_root": cache, "min_replicas": REPLICAS, "max_replicas": REPLICAS}
        return {"factory": "benchmarks.serving_models:ours", "arguments": given | CASES[case]}
    given = {"directory": str(model), "num_replicas": REPLICAS}
    return {"factory": "benchmarks.serving_plain:plain", "arguments": given | CASES[case]}


def render(found: measuring.Rounds[Overload]) -> str:
    """What was accepted, and what became of the rest."""
    rows = [[case, *_cells(found, case)] for case in found.results]
    header = ["case", "peak, 1/s", "offered, 1/s", "answered, 1/s", "of the peak", "p99 unloaded, ms",
              "p99 of answered, ms", "factor", "refused", "refused in, median ms", "refused in, p99 ms",
              "failed or given up", "replicas lost"]  # fmt: skip
    return measuring.table(header, [*rows, *measuring.failure_rows(found.failures, len(header))])


def _cells(found: measuring.Rounds[Overload], case: str) -> list[str]:
    values = (
        ("peak", ".0f"), ("offered", ".0f"), ("answered", ".0f"), ("kept", ".1%"), ("unloaded_p99_ms", ".0f"),
        ("answered_p99_ms", ".0f"), ("p99_factor", ".2f"), ("refused", ".0%"), ("refused_p50_ms", ".1f"),
        ("refused_p99_ms", ".1f"), ("failed", ".1%"),
    )  # fmt: skip
    lost = sum(one.replicas_lost for one in found.results[case])
    return [*(f"{found.spread(case, attrgetter(name)):{form}}" for name, form in values), str(lost)]


def options() -> argparse.ArgumentParser:
    """Command line; its defaults are what ``python -m benchmarks`` runs."""
    parser = measuring.parser(__doc__, rounds=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload in each round (default %(default)s)")
    return parser


def main() -> None:
    print(measuring.environment() + "\n")
    print(run(options().parse_args()))


if __name__ == "__main__":
    main()
