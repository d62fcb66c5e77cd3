"""What all benchmarks share: interleaved rounds, processes of their own, median and range, tables, the environment."""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
MIB = 1024**2
CASE_LIMIT_S = 180.0
_NAMED_PACKAGES = ("torch", "safetensors", "boto3", "awscrt", "ray")


class CaseFailed(Exception):  # noqa: N818 - a result of a benchmark, told in its table
    """A client did not do what was asked; the text says what it did."""


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

    A case that fails is not run again, whatever it measured before is dropped, and its text is kept.
    """
    results: dict[str, list[T]] = {case: [] for case in cases}
    failures: dict[str, str] = {}
    for number in range(rounds):
        for case in cases:
            if case in failures:
                continue
            print(f"{title} {number + 1}/{rounds}: {case}".strip(), file=sys.stderr, flush=True)
            try:
                results[case].append(measure(case))
            except CaseFailed as failure:
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


def run_child(
    module: str, arguments: Sequence[str], *, python: str = sys.executable, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run ``python -m module`` to its end, in its own process group, and return the JSON of its last line.

    Raises :class:`CaseFailed` with its last words. What it started is gone when this returns.
    """
    process = start_child(module, arguments, python=python, env=env)
    try:
        out, err = process.communicate(timeout=CASE_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise CaseFailed(f"not done after {CASE_LIMIT_S:g} s") from None
    finally:
        end_group(process)
    if process.returncode != 0:
        raise CaseFailed(last_words(err) or f"ended with status {process.returncode}")
    return cast("dict[str, Any]", json.loads(out.strip().splitlines()[-1]))


def start_child(
    module: str, arguments: Sequence[str], *, python: str = sys.executable, env: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """``python -m module`` in a process group of its own, with pipes; give it to :func:`end_group` at the end."""
    return subprocess.Popen(
        [python, "-m", module, *arguments],
        cwd=ROOT, env={**os.environ, **(env or {})}, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def end_group(process: "subprocess.Popen[str]") -> None:
    """kill -9 for the process and everything it started; no error where all of it is gone."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            pipe.close()


def last_words(text: str) -> str:
    """The last line of a process's complaints, short enough for a table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def drop_page_cache() -> bool:
    """Write back and drop all clean pages; False where this user may not. Files in tmpfs stay in memory."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
    except OSError:
        return False
    return True


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
    """The cases whose name has one of the comma-separated texts; all of them without any."""
    wanted = [text.strip() for text in texts.split(",")] if texts else [""]
    found = [case for case in cases if any(text in case for text in wanted)]
    if not found:
        raise SystemExit(f"--cases {texts}: no case has such a name; there are: {'; '.join(cases)}")
    return found
