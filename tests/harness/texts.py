"""Every text in a record, also inside JSON, YAML and base64 that a resource carries as one string."""

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any

import yaml


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of everything in nested mappings and lists; documents inside strings are opened up."""
    yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}{{key}}", key
            yield from walk(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from walk(item, f"{path}[{index}]")
    elif isinstance(value, str):
        for kind, inner in _documents(value):
            yield from walk(inner, f"{path}<{kind}>")


def _documents(text: str) -> Iterator[tuple[str, Any]]:
    if text[:1] in "{[" and text:
        try:
            yield "json", json.loads(text)
        except ValueError:
            pass
        else:
            return
    if "\n" in text and ":" in text and not text.startswith(("MIME-Version", "[")):
        try:
            document = yaml.safe_load(text)
        except yaml.YAMLError:
            document = None
        if isinstance(document, dict | list):
            yield "yaml", document
    decoded = _from_base64(text)
    if decoded is not None:
        yield "base64", decoded


def _from_base64(text: str) -> str | None:
    # Shorter texts are words that happen to be valid base64.
    if len(text) < 40 or len(text) % 4:
        return None
    try:
        return base64.b64decode(text, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None
