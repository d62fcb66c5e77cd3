"""Seconds from an object store to a module that is ready, beside the clients that people use for it.

Interpreter, torch and the client's library are imported before the clock starts; its client object, its requests and
the load are inside. Every client gets the same endpoint, an empty directory, and a page cache without the last round
(dropped where this user may; the objects of the store stay in memory).
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import measuring
from benchmarks.children import drop_page_cache, touch_memory
from benchmarks.fetching import CHECKS, NAMES, Bench, check_digest, prepared

CASES = ("ours", "ours told", "rclone", "obstore", "s5cmd", "boto3", "s3torchconnector", "runai", "s3fs")
# Columns without a cap run for these only, and those of several shards in fewer rounds, or a run would take too long;
# --full runs all of it.
_FEW = ("ours", "rclone", "obstore", "boto3")
_SHARDED_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Column:
    """One size under one kind of connection."""

    size: str
    capped: bool
    cases: tuple[str, ...]
    rounds: int

    @property
    def title(self) -> str:
        return f"{self.size.replace('x', ' x ')} MiB, {'capped' if self.capped else 'no cap'}"


def columns(sizes: str, rounds: int, cases: list[str], full: bool) -> list[Column]:
    """``64,1024,1024/uncapped`` to columns."""
    made: list[Column] = []
    for text in sizes.split(","):
        size, _, kind = text.strip().partition("/")
        if kind not in ("", "uncapped"):
            raise SystemExit(f"--sizes {text!r}: only /uncapped may follow a size")
        few = bool(kind) and not full
        made.append(
            Column(
                size=size,
                capped=not kind,
                cases=tuple(case for case in cases if not few or case in _FEW),
                rounds=min(rounds, _SHARDED_ROUNDS) if "x" in size and not full else rounds,
            )
        )
    return made


def measure(bench: Bench, column: Column, case: str) -> dict[str, Any]:
    """One client once, from an empty directory."""
    model = bench.models[column.size]
    directory = bench.empty("model")
    with bench.start(case, model, directory, capped=column.capped) as child:
        child.await_ready()
        drop_page_cache()
        touch_memory(2 * model.size_bytes)
        child.go()
        result = child.result()
        check_digest(model, child)
    return result


def run(arguments: argparse.Namespace) -> str:
    """The section of the report."""
    cases = measuring.selected(CASES, arguments.cases)
    wanted = columns(arguments.sizes, arguments.rounds, cases, arguments.full)
    with prepared([column.size for column in wanted], arguments.directory) as bench:
        found: dict[str, measuring.Rounds[dict[str, Any]]] = {
            column.title: measuring.interleave(
                column.cases, column.rounds, lambda case, column=column: measure(bench, column, case), column.title
            )
            for column in wanted
        }
    return render(cases, found)


def render(cases: list[str], found: dict[str, measuring.Rounds[dict[str, Any]]]) -> str:
    """Tables of seconds, of CPU seconds, and of our phases."""
    seconds = [[NAMES[case], *_cells(case, found, "seconds"), CHECKS.get(case, "none found")] for case in cases]
    cpu = [[NAMES[case], *_cells(case, found, "cpu_s")] for case in cases]
    parts = [
        "Seconds until the module is ready:\n",
        measuring.table(["client", *found, "what it checks"], seconds),
        "\nCPU seconds of the client's processes (the CPUs are shared with nginx):\n",
        measuring.table(["client", *found], cpu),
    ]
    phases = ("resolve", "download", "verify", "commit", "load")
    ours = [
        [title, *(f"{one.spread('ours', lambda result, phase=phase: result['notes'].get(phase, 0.0)):.2f}"
                  for phase in phases)]
        for title, one in found.items() if "ours" in one.results
    ]  # fmt: skip
    if ours:
        parts += ["\nWhere our seconds go:\n", measuring.table(["", *phases], ours)]
    return "\n".join(parts)


def _cells(case: str, found: dict[str, measuring.Rounds[dict[str, Any]]], value: str) -> list[str]:
    cells: list[str] = []
    for one in found.values():
        if case in one.failures:
            cells.append(f"failed: {one.failures[case].replace('|', '/')}")
        elif case in one.results:
            cells.append(f"{one.spread(case, lambda result: result[value]):.2f}")
        else:
            cells.append("")
    return cells


def options() -> argparse.ArgumentParser:
    """Command line; its defaults are what ``python -m benchmarks`` runs."""
    parser = measuring.parser(__doc__, rounds=5)
    parser.add_argument(
        "--sizes",
        default="64,1024,1024/uncapped,4x1024",
        help="MiB, or shards x MiB; /uncapped for no cap (default %(default)s)",
    )
    parser.add_argument("--full", action="store_true", help="all clients and rounds in every column")
    parser.add_argument("--directory", type=Path, help="where clients write (default: the temporary directory)")
    return parser


def main() -> None:
    print(measuring.environment() + "\n")
    print(run(options().parse_args()))


if __name__ == "__main__":
    main()
