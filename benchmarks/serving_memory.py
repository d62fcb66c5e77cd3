"""What :mod:`benchmarks.memory_limited` shows, as a section of the report."""

import argparse

from benchmarks import measuring, memory_limited

__doc__ = memory_limited.__doc__


def run(arguments: argparse.Namespace) -> str:
    """The section of the report: every round's rows, since a median says nothing of who was killed."""
    rows = [row for _ in range(arguments.rounds) for row in memory_limited.run()]
    return memory_limited.table(rows)


def options() -> argparse.ArgumentParser:
    """Command line; its defaults are what ``python -m benchmarks`` runs."""
    return measuring.parser(__doc__, rounds=5)
