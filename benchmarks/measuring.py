"""What all benchmarks share: options, interleaved rounds, median and range, tables, the environment."""

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Generic, TypeVar

from benchmarks.children import CaseFailed

T = TypeVar("T")

MIB = 1024**2
_NAMED_PACKAGES = ("torch", "safetensors", "boto3", "awscrt", "ray")


class OursFailed(SystemExit):
    """Ours gave no result, so that there is nothing to compare."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median and range of the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median=statistics.median(values), low=min(values), high=max(values))

    def __format__(self, form: str) -> str:
        return f"{self.median:{form}} ({self.low:{form}} to {self.high:{form}})"


@dataclass(frozen=True, kw_only=True)
class Rounds(Generic[T]):
    """Results of each case that never failed, and what the others said."""

    results: Mapping[str, Sequence[T]]
    failures: Mapping[str, str]

    def spread(self, case: str, value: Callable[[T], float]) -> Spread:
        """Median and range of one number of a case."""
        return Spread.of([value(one) for one in self.results[case]])


def interleave(cases: Sequence[str], rounds: int, measure: Callable[[str], T], title: str = "") -> Rounds[T]:
    """Every case once a round, so that whatever else the machine does meets all of them.

    The order turns by one each round: a case must not always come after the same one. A case that fails is not run
    again, whatever it measured before is dropped, and its text is kept. Where ours fails there is nothing to compare:
    :class:`OursFailed`.
    """
    results: dict[str, list[T]] = {case: [] for case in cases}
    failures: dict[str, str] = {}
    for number in range(rounds):
        turn = number % len(cases)
        for case in (*cases[turn:], *cases[:turn]):
            if case in failures:
                continue
            print(f"{title} {number + 1}/{rounds}: {case}".strip(), file=sys.stderr, flush=True)
            try:
                results[case].append(measure(case))
            except CaseFailed as failure:
                if case.startswith("ours"):
                    raise OursFailed(f"{case}: {failure}") from failure
                failures[case] = str(failure)
                print(f"  {failure}", file=sys.stderr, flush=True)
    return Rounds(results={case: found for case, found in results.items() if case not in failures}, failures=failures)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def failure_rows(failures: Mapping[str, str], columns: int) -> list[list[str]]:
    """A row for each case without a result."""
    return [[case, text.replace("|", "/"), *[""] * (columns - 2)] for case, text in failures.items()]


def environment() -> str:
    """One paragraph: machine, kernel, versions, and what else it is doing."""
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text("ascii").splitlines())
    gib = int(memory["MemTotal"].split()[0]) / MIB
    packages = ", ".join(f"{name} {version(name)}" for name in _NAMED_PACKAGES)
    return (
        f"{os.cpu_count()} CPUs, {gib:.0f} GiB memory, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {packages}; load average at the start "
        f"{', '.join(f'{load:.1f}' for load in os.getloadavg())}."
    )


def parser(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=rounds, help=f"rounds, interleaved (default {rounds})")
    made.add_argument("--cases", help="only cases whose name has one of these texts, comma-separated")
    return made


def selected(cases: Sequence[str], texts: str | None) -> list[str]:
    """The cases whose name has one of the comma-separated texts, in any case; all of them without any."""
    wanted = [text.strip().lower() for text in texts.split(",")] if texts else [""]
    found = [case for case in cases if any(text in case.lower() for text in wanted)]
    if not found:
        raise SystemExit(f"--cases {texts}: no case has such a name; there are: {'; '.join(cases)}")
    return found
