"""Reads a mapping into frozen dataclasses and reports every problem, with key, value, rule and valid range.

Used for the Serve application's arguments and for stack files, so that both are equally strict. A field's rules stand
beside it, in :func:`setting`.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from enum import Enum
from typing import Any, TypeVar

from ray_model_serving.contract.problems import Problems, nearest

T = TypeVar("T")


@typing.runtime_checkable
class _Checked(typing.Protocol):
    def check(self, path: str, problems: Problems) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """What a value must satisfy beyond its type; ``reason`` completes the sentence of the error."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    pattern: str | None = None
    reason: str = ""
    min_items: int = 0
    check: Callable[[str], str | None] | None = None
    """For text: returns what is wrong with it, or None."""

    def broken_by(self, value: object) -> str | None:
        """The rule in words if ``value`` breaks it."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            too_low = self.minimum is not None and value < self.minimum
            too_high = self.maximum is not None and value > self.maximum
            not_above = self.above is not None and value <= self.above
            if too_low or too_high or not_above:
                return self._range()
        if isinstance(value, str) and self.pattern and not re.fullmatch(self.pattern, value):
            return f"must match {self.pattern}"
        if isinstance(value, str) and self.check:
            return self.check(value)
        if isinstance(value, tuple) and len(typing.cast("tuple[object, ...]", value)) < self.min_items:
            return f"needs at least {self.min_items} item{'s' if self.min_items != 1 else ''}"
        return None

    def _range(self) -> str:
        low = f"above {self.above:g}" if self.above is not None else ""
        if self.minimum is not None:
            low = f"at least {self.minimum:g}"
        high = f"at most {self.maximum:g}" if self.maximum is not None else ""
        return "must be " + " and ".join(part for part in (low, high) if part)


def setting(default: Any = MISSING, *, doc: str, **rule: Any) -> Any:
    """A dataclass field with its description and rules (see :class:`Rule`). No default: the key is required."""
    metadata = {"doc": doc, "rule": Rule(**rule)}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def read(cls: type[T], given: object, path: str, problems: Problems) -> T | None:
    """Build ``cls`` from a mapping. Problems go to ``problems``; None where any was found in this part.

    A class may carry ``RENAMED``, a mapping from names that people bring from elsewhere to what to write instead, and a
    method ``check(path, problems)`` for rules that span several fields; it runs once its own fields are well formed,
    whatever is wrong elsewhere.
    """
    if not isinstance(given, Mapping):
        problems.add(path, f"got {_show(given)}, must be a mapping")
        return None
    mapping = typing.cast("Mapping[object, object]", given)
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, cls))}
    hints = typing.get_type_hints(cls)
    before = len(problems.found)
    _report_unknown(cls, mapping, fields, path, problems)
    values: dict[str, object] = {}
    for name, field in fields.items():
        where = f"{path}.{name}" if path else name
        if name not in mapping:
            if field.default is MISSING and field.default_factory is MISSING:
                problems.add(where, f"is required: {field.metadata['doc']}")
            continue
        value = _convert(hints[name], mapping[name], where, problems)
        rule: Rule = field.metadata["rule"]
        broken = rule.broken_by(value)
        if broken:
            tail = f" ({rule.reason})" if rule.reason else ""
            problems.add(where, f"got {_show(mapping[name])}, {broken}{tail}")
        values[name] = value
    if len(problems.found) > before:
        return None
    instance = cls(**values)
    if isinstance(instance, _Checked):
        instance.check(path, problems)
    return instance


def to_mapping(value: object) -> Any:
    """The plain form of a settings value: dicts, lists and scalars, without what was left at None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: to_mapping(item) for name, item in pairs if item is not None}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_mapping(item) for key, item in typing.cast("Mapping[str, object]", value).items()}
    if isinstance(value, tuple | list):
        return [to_mapping(item) for item in typing.cast("Sequence[object]", value)]
    return value


def _report_unknown(
    cls: type, mapping: Mapping[object, object], fields: Mapping[str, object], path: str, problems: Problems
) -> None:
    renamed: Mapping[str, str] = getattr(cls, "RENAMED", {})
    for key in mapping:
        if key in fields:
            continue
        name = str(key)
        where = f"{path}.{name}" if path else name
        advice = renamed.get(name) or nearest(name, fields)
        problems.add(where, f"unknown key; {advice}")


def _convert(hint: Any, value: object, path: str, problems: Problems) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        hint = next(argument for argument in arguments if argument is not type(None))
        return _convert(hint, value, path, problems)
    if origin is tuple:
        return _convert_items(arguments[0], value, path, problems)
    if origin is not None and issubclass(origin, Mapping):
        return _convert_text_mapping(value, path, problems)
    if dataclasses.is_dataclass(hint):
        return read(typing.cast("type[object]", hint), value, path, problems)
    if issubclass(hint, Enum):
        return _convert_enum(hint, value, path, problems)
    return _convert_scalar(hint, value, path, problems)


def _convert_items(hint: Any, value: object, path: str, problems: Problems) -> tuple[object, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        problems.add(path, f"got {_show(value)}, must be a list")
        return ()
    items = typing.cast("Sequence[object]", value)
    return tuple(_convert(hint, item, f"{path}[{index}]", problems) for index, item in enumerate(items))


def _convert_text_mapping(value: object, path: str, problems: Problems) -> dict[str, str]:
    if not isinstance(value, Mapping):
        problems.add(path, f"got {_show(value)}, must be a mapping of text to text")
        return {}
    found: dict[str, str] = {}
    for key, item in typing.cast("Mapping[object, object]", value).items():
        if isinstance(key, str) and isinstance(item, str):
            found[key] = item
        else:
            problems.add(f"{path}.{key}", f"got {_show(item)}, must be text (quote numbers and booleans)")
    return found


def _convert_enum(hint: type[Enum], value: object, path: str, problems: Problems) -> Enum | None:
    valid = [str(member.value) for member in hint]
    if isinstance(value, str) and value in valid:
        return hint(value)
    advice = nearest(value, valid) if isinstance(value, str) else f"valid: {', '.join(valid)}"
    problems.add(path, f"got {_show(value)}, must be one of {', '.join(valid)}; {advice}")
    return None


def _convert_scalar(hint: type, value: object, path: str, problems: Problems) -> object:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        # Components hosted for other languages get every number as a float (Pulumi's wire format).
        return int(value)
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    problems.add(path, f"got {_show(value)}, must be {names[hint]}")
    return None


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
