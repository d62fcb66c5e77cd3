"""Reads a mapping into frozen dataclasses and reports every problem, with key, value, rule and valid range.

Used for the Serve application's arguments and for stack files, so that both are equally strict. A field's rules stand
beside it, in :func:`setting`; rules over several fields in a method ``check``.
"""

import dataclasses
import datetime
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING
from enum import Enum
from typing import Any, NoReturn, TypeVar

from ray_model_serving.contract.problems import Problems, close_to, nearest, show
from ray_model_serving.contract.rules import Rule

T = TypeVar("T")

_BAD = object()
_WANTED = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_QUOTE = "quote it, YAML reads it as a number, a boolean or a date"


@typing.runtime_checkable
class _Checked(typing.Protocol):
    def check(self, path: str, problems: Problems) -> None: ...


class UnreadableError(Exception):
    """A rule asked for a field that is not well formed. That is reported already, so the rule is left out: write
    ``with suppress(UnreadableError)`` around each rule of a ``check`` that has several."""


def setting(default: Any = MISSING, *, doc: str, **rule: Any) -> Any:
    """A dataclass field with its description and rules (see :class:`Rule`). No default: the key is required."""
    metadata = {"doc": doc, "rule": Rule(**rule)}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def read(cls: type[T], given: object, path: str, problems: Problems) -> T | None:
    """Build ``cls`` from a mapping. Problems go to ``problems``; None where any was found in this part.

    A class may carry ``RENAMED``, a mapping from names that people bring from elsewhere to what to write instead, and a
    method ``check(path, problems)`` for rules that span several fields. It runs over what is well formed, whatever is
    wrong elsewhere: a field that is not raises :class:`UnreadableError` when it is asked for.
    """
    before = len(problems.found)
    instance = _read(cls, given, path, problems)
    return instance if len(problems.found) == before else None


def at(path: str, name: object) -> str:
    """The path of a part."""
    return f"{path}.{name}" if path else str(name)


def readable(items: Sequence[object], name: str) -> list[Any]:
    """A field of each item, as far as it is well formed."""
    return [getattr(item, name) for item in items if name not in getattr(item, "_unreadable", ())]


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


def _read(cls: type[T], given: object, path: str, problems: Problems) -> T:
    """The instance, or a draft of it where fields are missing or wrong."""
    mapping: Mapping[object, object] = {}
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, cls))}
    hints = typing.get_type_hints(cls)
    if not isinstance(given, Mapping):
        problems.add(path or problems.source, f"got {show(given)}, must be a mapping")
        return _draft(cls, {}, fields)
    mapping = typing.cast("Mapping[object, object]", given)
    _report_unknown(cls, mapping, fields, path, problems)
    values: dict[str, object] = {}
    unreadable: list[str] = []
    for name, field in fields.items():
        where = at(path, name)
        if name not in mapping:
            if field.default is MISSING and field.default_factory is MISSING:
                problems.add(where, f"is required: {field.metadata['doc']}")
                unreadable.append(name)
            continue
        value = _convert(hints[name], mapping[name], where, problems)
        if value is _BAD or _breaks(field.metadata["rule"], value, mapping[name], where, problems):
            unreadable.append(name)
        else:
            values[name] = value
    instance = _draft(cls, values, unreadable) if unreadable else cls(**values)
    if isinstance(instance, _Checked):
        with suppress(UnreadableError):
            instance.check(path, problems)
    return instance


def _draft(cls: type[T], values: Mapping[str, object], unreadable: Iterable[str]) -> T:
    """An instance for rules to look at: what could not be read raises, and what was left out has its default."""
    names = frozenset(unreadable)
    body: dict[str, Any] = dict.fromkeys(names, property(_refuse))
    draft = object.__new__(type(cls.__name__, (cls,), {**body, "_unreadable": names}))
    for field in dataclasses.fields(typing.cast(Any, cls)):
        if field.name in names:
            continue
        value = values.get(field.name, field.default)
        if value is MISSING:
            value = typing.cast("Callable[[], object]", field.default_factory)()
        object.__setattr__(draft, field.name, value)
    return typing.cast(T, draft)


def _refuse(_: object) -> NoReturn:
    raise UnreadableError


def _breaks(rule: Rule, value: object, given: object, path: str, problems: Problems) -> bool:
    broken = rule.broken_by(value)
    for item, reason in broken:
        at_item = "" if item is None else f"[{item}]"
        shown = given if item is None else typing.cast("Sequence[object]", given)[item]
        tail = f" ({rule.reason})" if rule.reason else ""
        problems.add(f"{path}{at_item}", f"got {show(shown)}, {reason}{tail}")
    return bool(broken)


def _report_unknown(
    cls: type, mapping: Mapping[object, object], fields: Mapping[str, object], path: str, problems: Problems
) -> None:
    renamed: Mapping[str, str] = getattr(cls, "RENAMED", {})
    for key in mapping:
        if key in fields:
            continue
        name = key if isinstance(key, str) else show(key)
        advice = renamed.get(name) or nearest(name, fields)
        problems.add(at(path, name), f"unknown key; {advice}")


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
        return _read(typing.cast("type[object]", hint), value, path, problems)
    if issubclass(hint, Enum):
        return _convert_enum(hint, value, path, problems)
    return _convert_scalar(hint, value, path, problems)


def _convert_items(hint: Any, value: object, path: str, problems: Problems) -> Any:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        problems.add(path, f"got {show(value)}, must be a list")
        return _BAD
    items = typing.cast("Sequence[object]", value)
    converted = tuple(_convert(hint, item, f"{path}[{index}]", problems) for index, item in enumerate(items))
    return _BAD if any(item is _BAD for item in converted) else converted


def _convert_text_mapping(value: object, path: str, problems: Problems) -> Any:
    if not isinstance(value, Mapping):
        problems.add(path, f"got {show(value)}, must be a mapping of text to text")
        return _BAD
    found: dict[str, str] = {}
    items = typing.cast("Mapping[object, object]", value).items()
    for key, item in items:
        if not isinstance(key, str):
            problems.add(path, f"got the key {show(key)}, must be text ({_QUOTE})")
        elif not isinstance(item, str):
            problems.add(at(path, key), f"got {show(item)}, must be text ({_QUOTE})")
        else:
            found[key] = item
    return found if len(found) == len(items) else _BAD


def _convert_enum(hint: type[Enum], value: object, path: str, problems: Problems) -> Any:
    valid = [str(member.value) for member in hint]
    if isinstance(value, str) and value in valid:
        return hint(value)
    close = close_to(value, valid) if isinstance(value, str) else ""
    problems.add(path, f"got {show(value)}, must be one of {', '.join(valid)}" + (f"; {close}" if close else ""))
    return _BAD


def _convert_scalar(hint: type, value: object, path: str, problems: Problems) -> object:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value, path, problems)
    if hint is int and isinstance(value, float) and value.is_integer():
        # Components hosted for other languages get every number as a float (Pulumi's wire format).
        return int(value)
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    quoting = hint is str and isinstance(value, int | float | datetime.date)
    problems.add(path, f"got {show(value)}, must be {_WANTED[hint]}" + (f" ({_QUOTE})" if quoting else ""))
    return _BAD


def _finite(value: float, path: str, problems: Problems) -> object:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isfinite(number):
        return number
    problems.add(path, f"got {show(value)}, must be a finite number")
    return _BAD
