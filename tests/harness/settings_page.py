"""``docs/settings.md``: every key of a stack file, from the dataclasses that read it."""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.rules import Rule

_INTRODUCTION = """\
# Settings of a stack

Every key of `infra/environments/Pulumi.<stack>.yaml`, where each top key has the project's name before it
(`eks-gpu-serving:region`). `GpuServingStackArgs` has the same keys. Unknown keys, wrong types and values out of range
are refused, all at once, by `gpu-serving plan --stack <stack>` without a cloud and by `pulumi preview` alike. Whether
the stack fits its machines is told by the same two commands.

This page is made from the code; `make golden` writes it anew.

## What follows from what

- **Device memory** of a replica: `gpu_gib`, and `resident_gib` for loaded variants, the size of one where it is left
  out. On the CPU, loaded variants are part of the replica's memory.
- **Cache** of a node: two versions of each model and of each of its variants, each with a copy in another type where
  `dtype` asks for one and `keep_converted` keeps it, and the largest of all once more while it is made. A variant
  counts as large as its model; a copy in 16 bits as large as the files, one in `float32` twice as large.
- **Prefetch** of a node, before its replicas start: the models, then of each the first variants, as many as a replica
  holds at once. The others are fetched when they are first asked for: no start waits for what few requests need.
- **Scale-down**: a surplus lasts at least twice as long as a new replica takes to be ready: `load_time_s` as measured,
  or what the plan expects on a new node (node, image, start, prefetch).
- **Ends**, each longer than the one before: `request_deadline_s`, the proxy's time-out (5 s more), the drain of a
  replica (10 s more), the grace period of a pod (20 s more, and longer than the 30 s that a proxy drains at least).
- **Upgrades**: a new model or variant changes the Serve application and the prefetch list only. Sizes, image and bounds
  of memory are the cluster's: with `upgrade: new_cluster` they start a second one beside the first.
"""
_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def settings_page() -> str:
    """The page as Markdown."""
    return "\n".join([_INTRODUCTION, *_sections(StackSettings, "")])


def _sections(cls: Any, path: str) -> Iterator[str]:
    hints, fields = typing.get_type_hints(cls), dataclasses.fields(cls)
    yield f"## {f'`{path}`' if path else 'Top keys'}\n"
    yield f"{_first_paragraph(cls)}\n"
    yield "| key | type | default | rule | what |"
    yield "| --- | --- | --- | --- | --- |"
    for field in fields:
        cells = (f"`{field.name}`", _type(hints[field.name]), _default(field), _rule(field), field.metadata["doc"])
        yield f"| {' | '.join(map(_cell, cells))} |"
    yield ""
    for field in fields:
        part = _part(hints[field.name])
        if part is not None:
            yield from _sections(part, f"{path}{'.' if path else ''}{field.name}{_brackets(hints[field.name])}")


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;")


def _first_paragraph(cls: type) -> str:
    return " ".join((cls.__doc__ or "").split("\n\n")[0].replace("``", "`").split())


def _plain(hint: Any) -> Any:
    """Without None, which only says that a key may be left out."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    return next(option for option in options if option is not type(None))


def _items(hint: Any) -> Any:
    hint = _plain(hint)
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None


def _part(hint: Any) -> Any:
    inner = _items(hint) or _plain(hint)
    return inner if dataclasses.is_dataclass(inner) else None


def _brackets(hint: Any) -> str:
    return "[]" if _items(hint) else ""


def _type(hint: Any) -> str:
    inner: Any = _items(hint) or _plain(hint)
    if dataclasses.is_dataclass(inner):
        word = "mapping"
    elif isinstance(inner, type) and issubclass(inner, Enum):
        word = " or ".join(f"`{member.value}`" for member in inner)
    elif isinstance(inner, type) and inner in _WORDS:
        word = _WORDS[inner]
    else:
        assert typing.get_origin(inner) is Mapping, hint
        word = "mapping of text"
    return f"list of {word}" if _items(hint) else word


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else ""
    value = field.default.value if isinstance(field.default, Enum) else field.default
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in typing.cast("tuple[str, ...]", value))
    return f"{value:g}" if isinstance(value, float) else f"`{value}`" if isinstance(value, str) else str(value)


def _rule(field: "dataclasses.Field[Any]") -> str:
    rule: Rule = field.metadata["rule"]
    parts = [f"above {rule.above:g}"] if rule.above is not None else []
    parts += [f"at least {_number(rule.minimum)}"] if rule.minimum is not None else []
    parts += [f"at most {_number(rule.maximum)}"] if rule.maximum is not None else []
    parts += [f"multiple of {1 / rule.steps_per_unit:g}"] if rule.steps_per_unit else []
    parts += [f"at least {rule.min_items} item"] if rule.min_items else []
    parts += [f"matches `{rule.pattern}`"] if rule.pattern else []
    return ", ".join(parts) + (f" ({rule.reason})" if rule.reason else "")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:g}"
