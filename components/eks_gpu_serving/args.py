"""Arguments of components: read once at the top of a constructor, wrong ones reported together."""

import dataclasses
import types
import typing
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import pulumi

from ray_model_serving.contract.problems import close_to, nearest, show

T = TypeVar("T")

_WANTED: Mapping[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Sequence: "a list",
    Mapping: "a mapping of text to text",
}


def read_args(cls: type[T], given: object, component: str) -> T:
    """The arguments as an instance of ``cls``, a frozen dataclass.

    A component that is hosted for another language is handed a mapping with snake_case keys, every number a float and
    every enum a text (pulumi/pulumi#18526). Raises ``pulumi.InputPropertiesError`` with every problem.
    """
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, cls))}
    problems: list[tuple[str, str]] = []
    if isinstance(given, Mapping):
        values = dict(typing.cast("Mapping[str, Any]", given))
        problems += [(str(key), f"unknown; {nearest(str(key), fields)}") for key in values if key not in fields]
    elif isinstance(given, cls):
        values = {name: getattr(given, name) for name in fields}
    else:
        raise input_error(component, [("args", f"got {show(given)}, must be a {cls.__name__} or a mapping")])
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if values.get(name) is None:
            if required:
                problems.append((name, "is required"))
            continue
        try:
            # Not get_type_hints: it can't resolve the forward reference inside pulumi.Input.
            values[name] = _plain(field.type, values[name])
        except ValueError as error:
            problems.append((name, str(error)))
    raise_problems(component, problems)
    return cls(**values)


def _plain(hint: Any, value: Any) -> Any:
    """Whole numbers as int and words of a closed set as enum; Outputs as they are where they are allowed."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    # pulumi.Input[T] is T, an awaitable of it or an Output of it.
    plain = [option for option in options if _origin(option) in _WANTED or _is_enum(option)]
    if isinstance(value, pulumi.Output | Awaitable):
        if any(_origin(option) is Awaitable for option in options):
            return typing.cast(Any, value)
        raise ValueError("got an Output, must be plain: it is needed before anything is created")
    return _checked(plain[0], value)


def _checked(hint: Any, value: Any) -> Any:
    if _is_enum(hint):
        return _member(hint, value)
    kind = _origin(hint)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return value
    wrong = isinstance(value, bool) and kind is not bool
    wrong = wrong or (kind is Sequence and isinstance(value, str | bytes))
    if wrong or not isinstance(value, kind):
        raise ValueError(f"got {show(value)}, must be {_WANTED[kind]}")
    if value == "":
        raise ValueError("is empty; leave it out where it may be left out")
    if kind is Sequence:
        return [_plain(typing.get_args(hint)[0], item) for item in typing.cast("Sequence[Any]", value)]
    if kind is Mapping and not _is_text_mapping(typing.cast("Mapping[Any, Any]", value)):
        raise ValueError(f"got {show(value)}, must be {_WANTED[kind]}")
    return value


def _member(enum: type[Enum], value: Any) -> Enum:
    valid = [str(member.value) for member in enum]
    if isinstance(value, enum):
        return value
    if value in valid:
        return enum(value)
    close = close_to(value, valid) if isinstance(value, str) else ""
    raise ValueError(f"got {show(value)}, must be one of {', '.join(valid)}" + (f"; {close}" if close else ""))


def _is_text_mapping(value: Mapping[Any, Any]) -> bool:
    return all(isinstance(part, str) for pair in value.items() for part in pair)


def _origin(hint: Any) -> Any:
    return typing.get_origin(hint) or hint


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def raise_problems(component: str, problems: Iterable[tuple[str, str]]) -> None:
    """Raise one ``pulumi.InputPropertiesError`` with everything that was collected, if anything was."""
    found = list(problems)
    if found:
        raise input_error(component, found)


def input_error(component: str, found: Sequence[tuple[str, str]]) -> pulumi.InputPropertiesError:
    """The error of properties; its text says it all again, for programs that show only that."""
    count = f"{len(found)} problem{'s' if len(found) != 1 else ''}"
    lines = "\n".join(f"  - {path}: {reason}" for path, reason in found)
    errors = [pulumi.InputPropertyErrorDetails(property_path=path, reason=reason) for path, reason in found]
    return pulumi.InputPropertiesError(f"{component}: {count}\n{lines}", errors)
