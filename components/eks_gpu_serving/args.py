"""Arguments of components: read once at the top of a constructor, wrong ones reported together."""

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, TypeVar

import pulumi

from ray_model_serving.contract.problems import nearest

T = TypeVar("T")


def read_args(cls: type[T], given: object, component: str) -> T:
    """The arguments as an instance of ``cls``, a frozen dataclass.

    A component that is hosted for another language is handed a mapping with snake_case keys, every number a float and
    every enum a text (pulumi/pulumi#18526). Raises ``pulumi.InputPropertiesError`` with every problem.
    """
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, cls))}
    problems: list[tuple[str, str]] = []
    if isinstance(given, Mapping):
        values = dict(typing.cast("Mapping[str, Any]", given))
        problems += [(key, f"unknown; {nearest(key, fields)}") for key in values if key not in fields]
    else:
        values = {name: getattr(given, name) for name in fields}
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
    """Whole numbers as int and words of a closed set as enum; everything else, also Outputs, as it is."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if int in options and isinstance(value, float):
        if not value.is_integer():
            raise ValueError(f"got {value!r}, must be a whole number")
        return int(value)
    enums = [option for option in options if isinstance(option, type) and issubclass(option, Enum)]
    if enums and isinstance(value, str) and not isinstance(value, Enum):
        valid = [str(member.value) for member in enums[0]]
        if value not in valid:
            raise ValueError(f"got {value!r}, must be one of {', '.join(valid)}; {nearest(value, valid)}")
        return enums[0](value)
    return value


def raise_problems(component: str, problems: Iterable[tuple[str, str]]) -> None:
    """Raise one ``pulumi.InputPropertiesError`` with everything that was collected; the text says it all again, for
    programs that show only that."""
    found = list(problems)
    if not found:
        return
    count = f"{len(found)} problem{'s' if len(found) != 1 else ''}"
    lines = "\n".join(f"  - {path}: {reason}" for path, reason in found)
    errors = [pulumi.InputPropertyErrorDetails(property_path=path, reason=reason) for path, reason in found]
    raise pulumi.InputPropertiesError(f"{component}: {count}\n{lines}", errors)
