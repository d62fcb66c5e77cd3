"""N replicas that start at once on one node: bytes from the store, seconds until the last is ready, and memory.

Each replica is a process; interpreter, torch and client are imported before the clock starts. Afterwards one more
replica starts, as after a crash or a scale-up, and its bytes are counted too.
"""

import argparse
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from benchmarks import measuring
from benchmarks.children import drop_page_cache, pss_bytes, touch_memory
from benchmarks.fetching import NAMES, Bench, Model, check_digest, prepared

CASES = ("ours pinned", "ours", "boto3", "ray.llm")
_OWN_DIRECTORY = ("boto3",)


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of N replicas. Bytes are ratios to the model's."""

    seconds: float
    from_store: float
    late_from_store: float
    memory: float


def measure(bench: Bench, model: Model, case: str, count: int, *, capped: bool) -> Start:
    """N replicas together, then one more."""
    node = bench.empty("node")

    def directory(number: int) -> Path:
        return node / f"replica-{number}" if case in _OWN_DIRECTORY else node / "shared"

    with ExitStack() as stack:
        start = [
            stack.enter_context(bench.start(case, model, directory(number), capped=capped)) for number in range(count)
        ]
        for child in start:
            child.await_ready()
        drop_page_cache()
        touch_memory(2 * model.size_bytes)
        mark, before = bench.store.mark(), sum(pss_bytes(child.pid) for child in start)
        began = monotonic()
        for child in start:
            child.go()
        results = [child.result() for child in start]
        for child in start:
            check_digest(model, child)
        memory = sum(pss_bytes(child.pid) for child in start) - before
        # Not served(): clients that live on keep their connections, but all their requests have ended.
        served = bench.store.logged_bytes(mark)
        with bench.start(case, model, directory(count), capped=capped) as late:
            late.await_ready()
            mark = bench.store.mark()
            late.go()
            late.result()
            check_digest(model, late)
            late_served = bench.store.logged_bytes(mark)
    return Start(
        seconds=max(result["done"] for result in results) - began,
        from_store=served / model.size_bytes,
        late_from_store=late_served / model.size_bytes,
        memory=memory / model.size_bytes,
    )


def run(arguments: argparse.Namespace) -> str:
    """The section of the report."""
    counts = [int(text) for text in arguments.replicas.split(",")]
    chosen = measuring.selected(CASES, arguments.cases)
    cases = {f"{case} x {count}": (case, count) for count in counts for case in chosen}
    size = str(arguments.mib)
    with prepared([size], arguments.directory) as bench:
        model = bench.models[size]
        found = measuring.interleave(
            list(cases), arguments.rounds,
            lambda name: measure(bench, model, *cases[name], capped=not arguments.uncapped), "replicas",
        )  # fmt: skip
    return f"A model of {arguments.mib} MiB:\n\n{render(cases, found)}"


def render(cases: dict[str, tuple[str, int]], found: measuring.Rounds[Start]) -> str:
    """The table."""
    rows = [
        [
            NAMES[case], str(count),
            f"{found.spread(name, lambda one: one.seconds):.2f}",
            f"{found.spread(name, lambda one: one.from_store):.2f}",
            f"{found.spread(name, lambda one: one.late_from_store):.2f}",
            f"{found.spread(name, lambda one: one.memory):.2f}",
        ]
        for name, (case, count) in cases.items() if name in found.results
    ]  # fmt: skip
    header = ["client", "replicas", "s until all are ready", "store bytes / model", "of one more replica",
              "memory added (sum of PSS) / model"]  # fmt: skip
    return measuring.table(header, [*rows, *measuring.failure_rows(found.failures, len(header))])


def options() -> argparse.ArgumentParser:
    """Command line; its defaults are what ``python -m benchmarks`` runs."""
    parser = measuring.parser(__doc__, rounds=5)
    parser.add_argument("--replicas", default="1,2,4,8", help="counts (default %(default)s)")
    parser.add_argument("--mib", type=int, default=512, help="size of the model (default %(default)s)")
    parser.add_argument("--uncapped", action="store_true", help="no cap on each connection")
    parser.add_argument("--directory", type=Path, help="where clients write (default: the temporary directory)")
    return parser


def main() -> None:
    print(measuring.environment() + "\n")
    print(run(options().parse_args()))


if __name__ == "__main__":
    main()
