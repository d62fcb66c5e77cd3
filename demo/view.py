"""How the demo shows load reports."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

MIB = 1024**2
BAR_WIDTH = 48
# Below it, a lock that was free.
WAITED_S = 0.05
PHASES = ("resolve", "wait", "download", "verify", "commit", "map", "convert", "transfer", "warm_up")
MARKS = dict(zip(PHASES, "rwdvcmxtW", strict=True))


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One deployment: seconds until Serve reported it as running, and the load report of each replica that loaded."""

    name: str
    ready_s: float
    loads: Sequence[dict[str, Any]]


def print_timeline(console: Console, loads: Sequence[dict[str, Any]]) -> None:
    """A bar for each replica on one time axis, and its phases in seconds."""
    first = min(load["started_at_s"] for load in loads)
    span = max(load["started_at_s"] - first + load["seconds"]["total"] for load in loads)
    for number, load in enumerate(loads, start=1):
        seconds = {phase: load["seconds"].get(phase, 0.0) for phase in PHASES}
        bar = " " * round(BAR_WIDTH * (load["started_at_s"] - first) / span)
        bar += "".join(MARKS[phase] * round(BAR_WIDTH * seconds[phase] / span) for phase in PHASES)
        console.print(f"  replica {number} |{bar:<{BAR_WIDTH}}| {load['seconds']['total']:.2f} s, {_how(load)}")
        shown = [f"{phase} {seconds[phase]:.3f}" for phase in PHASES if seconds[phase] >= 0.0005]
        console.print(f"             {'  '.join(shown)}")
    legend = ", ".join(f"{mark} {phase}" for phase, mark in MARKS.items())
    console.print(f"  ({legend}; {span:.2f} s across)")


def _how(load: dict[str, Any]) -> str:
    """Where a replica's files came from, in words."""
    if load["bytes"]["store"]:
        return "downloaded from the store"
    waited_s = load["seconds"]["wait"]
    found = f"waited {waited_s:.2f} s for it" if waited_s > WAITED_S else "found it there"
    return f"mapped the node's copy, {found}"


def print_figures(console: Console, rows: Sequence[Figures]) -> None:
    """One line for each deployment: time to ready, bytes by source, hits, memory of its replicas."""
    table = Table(title="Figures (memory is over what a replica had before its load)", title_justify="left")
    columns = ("run", "running after", "slowest load", "from the store", "cache hits")
    for column in (*columns, "load peak anon", "file", "warm-up peak anon", "file"):
        table.add_column(column)
    for row in rows:
        memory = [load["memory"] for load in row.loads]
        table.add_row(
            row.name,
            f"{row.ready_s:.1f} s",
            f"{max(load['seconds']['total'] for load in row.loads):.2f} s",
            f"{sum(load['bytes']['store'] for load in row.loads) / MIB:.1f} MiB",
            f"{sum(load['bytes']['store'] == 0 for load in row.loads)} of {len(row.loads)}",
            *(
                f"{max(peaks[f'{step}peak_{kind}_bytes'] for peaks in memory) / MIB:.1f} MiB"
                for step in ("", "warm_up_")
                for kind in ("anon", "file")
            ),
        )
    console.print(table)
