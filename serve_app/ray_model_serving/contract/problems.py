"""All problems of an input at once, each with what was given, the rule and what to do."""

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ray_model_serving.contract.errors import ModelServingError

_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with an input. ``path`` names the key, such as ``models[0].uri``."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class SettingsError(ModelServingError):
    """An input that breaks one or more rules; ``problems`` holds every one of them."""

    kind = "bad_input"

    def __init__(self, problems: Iterable[Problem], *, source: str = "settings") -> None:
        self.problems = tuple(problems)
        self.source = source
        count = len(self.problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{source}: {count} problem{'s' if count != 1 else ''}\n{lines}")

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.problems, self.source))

    def to_json(self) -> Mapping[str, object]:
        document = dict(super().to_json())
        document["problems"] = [{"path": p.path, "message": p.message} for p in self.problems]
        return document


def _rebuild(problems: tuple[Problem, ...], source: str) -> SettingsError:
    return SettingsError(problems, source=source)


class Problems:
    """Collects problems while an input is read; nothing is raised until the whole input has been seen."""

    def __init__(self, source: str = "settings") -> None:
        self._source = source
        self._found: list[Problem] = []

    def add(self, path: str, message: str) -> None:
        self._found.append(Problem(path=path, message=message))

    @property
    def source(self) -> str:
        """What is being read, such as the name of a file."""
        return self._source

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def found(self) -> tuple[Problem, ...]:
        return tuple(self._found)

    def raise_if_any(self) -> None:
        """Raise one :class:`SettingsError` with everything that was collected."""
        if self._found:
            raise SettingsError(self._found, source=self._source)


def nearest(given: str, valid: Iterable[str]) -> str:
    """A ``did you mean`` tail for an unknown name, or the valid names where nothing is near."""
    names = sorted(valid)
    return close_to(given, names) or f"valid: {', '.join(names)}"


def close_to(given: str, valid: Iterable[str]) -> str:
    """A ``did you mean`` tail, or nothing where nothing is near."""
    close = difflib.get_close_matches(given[:_SHOWN_CHARACTERS], sorted(valid), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else ""


def show(value: object) -> str:
    """A given value in the text of an error: bounded, however large or deep it is."""
    if isinstance(value, str):
        text = repr(value[: _SHOWN_CHARACTERS + 1])
    else:
        try:
            text = _SHORT.repr(value)
        except ValueError:
            text = "a number of thousands of digits"  # Python writes no integer of more than 4300
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxother = _SHOWN_CHARACTERS
