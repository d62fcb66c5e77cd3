"""Reads the stack's configuration into a plain mapping, and nothing else: StackSettings judges it.

Every key of the project's namespace is read, also unknown ones, so that a misspelt key is refused and not ignored.
"""

import dataclasses
import json
import typing
from enum import Enum
from typing import Any

import pulumi
from pulumi.runtime import config as runtime_config

from eks_gpu_serving.settings import StackSettings


def load() -> dict[str, Any]:
    """The mapping that :meth:`StackSettings.from_mapping` takes. Objects and lists are decoded, texts left alone."""
    config = pulumi.Config()
    return {key: _decoded(key, config.require(key)) for key in _keys(config.name)}


def _keys(namespace: str) -> list[str]:
    # Config offers no listing: an engine hands the values over in one environment variable, an inline program in one
    # context variable (pulumi 3.272, runtime/config.py).
    known = {**runtime_config.get_config_env(), **runtime_config.CONFIG.get()}
    prefix = f"{namespace}:"
    return sorted(key.removeprefix(prefix) for key in known if key.startswith(prefix))


def _decoded(key: str, text: str) -> Any:
    if key in _text_keys():
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text  # StackSettings says what is wrong with it


def _text_keys() -> set[str]:
    hints = typing.get_type_hints(StackSettings)
    names = (field.name for field in dataclasses.fields(StackSettings))
    return {name for name in names if hints[name] is str or issubclass(_class_of(hints[name]), Enum)}


def _class_of(hint: Any) -> type:
    return hint if isinstance(hint, type) else object
