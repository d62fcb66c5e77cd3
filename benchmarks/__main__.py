"""Run the benchmarks with their defaults and write docs/benchmarks.md; with --only its other sections stay."""

import argparse
import datetime
import sys
import time
from pathlib import Path
from types import ModuleType

from benchmarks import (
    killed_download,
    load_memory,
    measuring,
    replicas,
    serving_burst,
    serving_memory,
    serving_overload,
    serving_request_cost,
    serving_rollout,
    store_to_module,
    warm_load,
)
from benchmarks.children import ROOT, CaseFailed

SECTIONS: dict[str, ModuleType] = {
    "Store to ready module": store_to_module,
    "Replicas of one node": replicas,
    "Peak memory of a load": load_memory,
    "Warm load": warm_load,
    "Killed download": killed_download,
    "Serving: cost of a request": serving_request_cost,
    "Serving: burst": serving_burst,
    "Serving: overload": serving_overload,
    "Serving: roll-out": serving_rollout,
    "Serving: memory limit": serving_memory,
}
NO_FIGURES = "This run has no figures:"
LIMITS = """## What these figures are not

The store is nginx on loopback, on the same CPUs as the clients. Where a column says capped, nginx paces each connection
at 90 MiB/s, as S3 does; there is no round-trip time, no TLS, no throttling by S3, and no network card. There is no GPU,
no NVMe and no S3 behind any figure here. Where CPUs are few, clients that need more of them lose more here than they
would on a GPU node. Peers run with the options that `benchmarks/clients.py` shows, in the versions of
`benchmarks/peers.py`.

Serving runs in one Ray node, its clients, proxy, controller and replicas on the same CPUs: a start of eight replicas
takes the CPU seconds of eight imports of torch, and latencies have the load generator's own share. A forward pass
sleeps, as a GPU would leave the CPUs alone; it takes the same time for a small batch as for a full one.
"""


HEAD = (
    "# Benchmarks\n\nWritten by `python -m benchmarks`; do not edit. Median (range) of interleaved rounds, each "
    "case in a process of its own.\n"
)


def page(sections: dict[str, str]) -> str:
    """The whole page; the sections in their order."""
    known = [title for title in SECTIONS if title in sections]
    return "\n".join([HEAD, *(f"## {title}\n\n{sections[title]}\n" for title in known), LIMITS])


def sections_of(text: str) -> dict[str, str]:
    """The sections that a page has, by title; those that no benchmark writes any more are left out."""
    parts = [part.partition("\n") for part in f"\n{text}".split("\n## ")[1:]]
    return {title: body.strip() for title, _, body in parts if title in SECTIONS}


def section(module: ModuleType, options: list[str]) -> str:
    """What a benchmark measures, in its own words, when and where it ran, and its tables; or why it has none, so that
    the others go on.
    """
    environment, started = measuring.environment(), time.monotonic()
    try:
        tables = module.run(module.options().parse_args(options))
    except (CaseFailed, measuring.OursFailed) as failure:
        tables = f"{NO_FIGURES} {failure}"
        print(tables, file=sys.stderr)
    day, minutes = datetime.datetime.now(tz=datetime.UTC).date().isoformat(), (time.monotonic() - started) / 60
    ran = f"Run of {day}, {minutes:.0f} minutes: {environment}"
    return f"{(module.__doc__ or '').strip()}\n\n{ran}\n\n{tables.strip()}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, help="the same number of rounds for all (default: each one's own)")
    parser.add_argument("--only", help="sections whose title has one of these texts, comma-separated")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks.md")
    arguments = parser.parse_args()
    options = ["--rounds", str(arguments.rounds)] if arguments.rounds else []
    titles = measuring.selected(list(SECTIONS), arguments.only)
    sections: dict[str, str] = {}
    for title in titles:
        sections[title] = section(SECTIONS[title], options)
        print(f"## {title}\n\n{sections[title]}\n", flush=True)
        # After each one, and on top of what is there then: a run of an hour that is interrupted keeps what it has.
        written = sections_of(arguments.output.read_text(encoding="utf-8")) if arguments.output.exists() else {}
        arguments.output.write_text(page({**written, title: sections[title]}), encoding="utf-8")
    print(f"wrote {len(sections)} sections to {arguments.output}", file=sys.stderr)
    if any(NO_FIGURES in text for text in sections.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
