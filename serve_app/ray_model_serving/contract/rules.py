"""What a setting must satisfy beyond its type."""

import re
import typing
from collections.abc import Callable
from dataclasses import dataclass

Broken = list[tuple[int | None, str]]
"""Rules in words, each with the index of the item that breaks it; None: the value as a whole."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """``pattern`` and ``check`` are for text, also for each text of a list; ``reason`` completes the sentence."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    steps_per_unit: int | None = None
    """For numbers: 100 allows two places after the point."""
    pattern: str | None = None
    reason: str = ""
    min_items: int = 0
    check: Callable[[str], str | None] | None = None
    """Returns what is wrong with the text, or None."""

    def broken_by(self, value: object) -> Broken:
        """Every rule that ``value`` breaks."""
        if isinstance(value, tuple):
            items = typing.cast("tuple[object, ...]", value)
            if len(items) < self.min_items:
                return [(None, f"needs at least {self.min_items} item{'s' if self.min_items != 1 else ''}")]
            return [(index, reason) for index, item in enumerate(items) if (reason := self._single(item))]
        reason = self._single(value)
        return [(None, reason)] if reason else []

    def _single(self, value: object) -> str | None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self._number(value)
        if isinstance(value, str) and self.pattern and not re.fullmatch(self.pattern, value):
            return f"must match {self.pattern}"
        return self.check(value) if isinstance(value, str) and self.check else None

    def _number(self, value: float) -> str | None:
        too_low = self.minimum is not None and value < self.minimum
        too_high = self.maximum is not None and value > self.maximum
        not_above = self.above is not None and value <= self.above
        if too_low or too_high or not_above:
            return self._range()
        if self.steps_per_unit:
            steps = value * self.steps_per_unit
            if abs(steps - round(steps)) > 1e-6:
                return f"must be a multiple of {1 / self.steps_per_unit:g}"
        return None

    def _range(self) -> str:
        low = f"above {self.above:g}" if self.above is not None else ""
        if self.minimum is not None:
            low = f"at least {self.minimum:g}"
        high = f"at most {self.maximum:g}" if self.maximum is not None else ""
        return "must be " + " and ".join(part for part in (low, high) if part)


def route_problem(text: str) -> str | None:
    """What is wrong with a route, or None."""
    if not re.fullmatch(r"/[A-Za-z0-9/_.-]*", text):
        return "must start with / and have letters, digits, '_', '.', '-' and '/' only"
    segments = text[1:].split("/")
    if text != "/" and "" in segments:
        return "must have no // and no / at its end, no request would match it"
    if {".", ".."} & set(segments):
        return "must have no '.' or '..' segment, clients resolve them before they send"
    return "must not lie under /-/, where Ray Serve answers itself" if segments[0] == "-" else None


def pattern_problem(text: str) -> str | None:
    """What is wrong with a file pattern, or None."""
    return None if text.strip() and text.isprintable() else "must be a file pattern such as *.json"
