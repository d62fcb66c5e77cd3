"""kill -9 in the middle of a download, then the same client again in the same place: how many bytes come a second time?

The client is stopped first, so that what nginx has sent and what then lies unread in socket buffers can be counted: a
few MiB for each connection, which no client has seen. What it has read is the difference.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import measuring
from benchmarks.children import LIMIT_S, CaseFailed, drop_page_cache
from benchmarks.fetching import NAMES, Bench, Model, check_digest, prepared
from benchmarks.object_store import BenchStore

CASES = ("ours", "rclone", "obstore", "s5cmd", "boto3", "s3torchconnector", "runai", "s3fs")
_POLL_S = 0.001
_SETTLED_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Killed:
    """Bytes before the kill and after it, as ratios to the model's."""

    before: float
    unread: float
    """Of it in socket buffers at the kill."""
    after: float

    @property
    def again(self) -> float:
        """What came beyond what was missing, over the model."""
        return self.before - self.unread + self.after - 1


def measure(bench: Bench, model: Model, case: str, at: float) -> Killed:
    """Kill at a fraction of the bytes, then run to the end."""
    directory = bench.empty("model")
    with bench.start(case, model, directory, capped=True) as child:
        child.await_ready()
        drop_page_cache()
        mark, start = bench.store.mark(), bench.store.sent_bytes_now()
        child.go()
        deadline = time.monotonic() + LIMIT_S
        while bench.store.sent_bytes_now() - start < at * model.size_bytes:
            if time.monotonic() > deadline:
                raise CaseFailed(f"did not reach {at:.0%} within {LIMIT_S:g} s")
            time.sleep(_POLL_S)
        child.stop()
        _await_full_buffers(bench.store)
        unread = bench.store.queued_bytes(capped=True)
        child.kill()
    before = sum(one.body_bytes for one in bench.store.served(mark))
    mark = bench.store.mark()
    with bench.start(case, model, directory, capped=True) as again:
        again.await_ready()
        again.go()
        again.result()
        check_digest(model, again)
    after = sum(one.body_bytes for one in bench.store.served(mark))
    size = model.size_bytes
    return Killed(before=before / size, unread=unread / size, after=after / size)


def _await_full_buffers(store: BenchStore) -> None:
    """Nobody reads any more, so what nginx can still send ends soon."""
    deadline, sent = time.monotonic() + LIMIT_S, -1
    while (now := store.sent_bytes_now()) != sent:
        if time.monotonic() > deadline:
            raise CaseFailed("the store went on sending to a client that was stopped")
        sent = now
        time.sleep(_SETTLED_S)


def run(arguments: argparse.Namespace) -> str:
    """The section of the report."""
    points = [float(text) / 100 for text in arguments.at.split(",")]
    chosen = measuring.selected(CASES, arguments.cases)
    cases = {f"{case} at {point:.0%}": (case, point) for case in chosen for point in points}
    size = str(arguments.mib)
    with prepared([size], arguments.directory) as bench:
        found = measuring.interleave(
            list(cases), arguments.rounds, lambda name: measure(bench, bench.models[size], *cases[name]), "kill"
        )
    return f"A model of {arguments.mib} MiB, each connection capped:\n\n{render(cases, found)}"


def render(cases: dict[str, tuple[str, float]], found: measuring.Rounds[Killed]) -> str:
    """The table."""
    rows = [
        [
            NAMES[case], f"{point:.0%}",
            f"{found.spread(name, lambda one: one.before):.2f}",
            f"{found.spread(name, lambda one: one.unread):.2f}",
            f"{found.spread(name, lambda one: one.after):.2f}",
            f"{found.spread(name, lambda one: one.again):.3f}",
        ]
        for name, (case, point) in cases.items() if name in found.results
    ]  # fmt: skip
    header = ["client", "killed at", "sent before / model", "of it unread", "sent after / model", "read twice / model"]
    return measuring.table(header, [*rows, *measuring.failure_rows(found.failures, len(header))])


def options() -> argparse.ArgumentParser:
    """Command line; its defaults are what ``python -m benchmarks`` runs."""
    parser = measuring.parser(__doc__, rounds=5)
    parser.add_argument("--at", default="20,50,90", help="per cent of the bytes at the kill (default %(default)s)")
    parser.add_argument("--mib", type=int, default=1024, help="size of the model (default %(default)s)")
    parser.add_argument("--directory", type=Path, help="where clients write (default: the temporary directory)")
    return parser


def main() -> None:
    print(measuring.environment() + "\n")
    print(run(options().parse_args()))


if __name__ == "__main__":
    main()
