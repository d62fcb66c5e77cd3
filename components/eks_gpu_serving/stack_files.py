"""Reads ``Pulumi.yaml`` and ``Pulumi.<stack>.yaml`` as ``pulumi`` does, without it: same keys, same values, same
refusals. Secrets are for pulumi to read, and no key of ours is one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.problems import Problems, SettingsError, nearest, show


class StackFileError(SettingsError):
    """A project or stack file that can't be read."""

    kind = "bad_stack_file"


@dataclass(frozen=True, kw_only=True)
class Project:
    """What ``Pulumi.yaml`` says: where the stack files lie, and the values that they need not repeat."""

    name: str
    """Namespace of the project's own keys."""
    stack_directory: Path
    defaults: Mapping[str, object]


def load_stack(stack: str, start: Path) -> StackSettings:
    """The validated settings of a stack of the project that ``start`` lies in.

    Raises :class:`SettingsError` with every problem of the file at once.
    """
    project = find_project(start)
    # As pulumi does: the file of organization/project/stack is that of the stack.
    path = project.stack_directory / f"Pulumi.{stack.rpartition('/')[2]}.yaml"
    if not path.is_file():
        stacks = [file.name.split(".")[1] for file in project.stack_directory.glob("Pulumi.?*.yaml")]
        known = nearest(stack, stacks) if stacks else "there is no stack file at all"
        reason = f"got {stack!r}, there is no {path.name} in {project.stack_directory}; {known}"
        raise _error(path, "stack", reason)
    return StackSettings.from_mapping(stack_mapping(path, project), source=path.name)


def find_project(start: Path) -> Project:
    """The project of the nearest ``Pulumi.yaml`` at or above ``start``."""
    folder = next((folder for folder in (start, *start.parents) if (folder / "Pulumi.yaml").is_file()), None)
    if folder is None:
        raise _error(start, "Pulumi.yaml", f"not found in {start} or above it; run this inside the project")
    path = folder / "Pulumi.yaml"
    document = _read_yaml(path)
    texts = {"name": document.get("name"), "stackConfigDir": document.get("stackConfigDir", ".")}
    for key, value in texts.items():
        if not isinstance(value, str) or not value:
            raise _error(path, key, f"got {show(value)}, must be text")
    name, directory = (str(value) for value in texts.values())
    config = _own_keys(path, document.get("config"), name)
    defaults = {key: value for key, entry in config.items() for value in _default(entry)}
    return Project(name=name, stack_directory=folder / directory, defaults=defaults)


def stack_mapping(path: Path, project: Project) -> dict[str, object]:
    """The values of the project's own keys, without their namespace: those of the stack file over the project's.

    A key without a namespace is the project's. Keys of other namespaces are theirs.
    """
    given = _own_keys(path, _read_yaml(path).get("config"), project.name)
    problems = Problems(path.name)
    seen: set[int] = set()
    for key in (key for top, value in given.items() for key in _secrets(top, value, seen)):
        problems.add(key, "is a secret, which only pulumi can read; no key of this project is one, write it in plain")
    if problems:
        raise StackFileError(problems.found, source=path.name)
    return {**project.defaults, **given}


def _default(entry: object) -> Iterator[object]:
    """The value that a key has without a stack's, at most one. What is no mapping is the value itself."""
    if not isinstance(entry, Mapping):
        yield entry
        return
    schema = cast("Mapping[str, object]", entry)
    yield from (schema[word] for word in ("value", "default") if word in schema)


def _own_keys(path: Path, config: object, name: str) -> dict[str, object]:
    if config is None:  # the word alone, as pulumi leaves it when the last value is removed
        return {}
    if not isinstance(config, Mapping):
        raise _error(path, "config", f"got {show(config)}, must be a mapping")
    found: dict[str, object] = {}
    for key, value in cast("Mapping[object, object]", config).items():
        if not isinstance(key, str):
            raise _error(path, "config", f"got the key {show(key)}, must be text; quote it")
        namespace, colon, own = key.partition(":")
        if colon and namespace != name:
            continue
        own = own if colon else key
        if own in found:
            raise _error(path, f"config.{own}", f"is given with and without {name}: before it; write it once")
        found[own] = value
    return found


def _secrets(path: str, value: object, seen: set[int]) -> Iterator[str]:
    # By identity: an alias stands for the same object, and may stand for one that it is part of.
    if not isinstance(value, Mapping | list) or id(cast("object", value)) in seen:
        return
    seen.add(id(cast("object", value)))
    if isinstance(value, list):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _secrets(f"{path}[{index}]", item, seen)
        return
    items = cast("Mapping[object, object]", value)
    if set(items) == {"secure"}:
        yield path
        return
    for key, item in items.items():
        yield from _secrets(f"{path}.{key}", item, seen)


class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys without a word; here they are an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            text = str(cast("yaml.Node", key).value)
            if text in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {text!r} occurs twice", node.start_mark)
            seen.add(text)
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> Mapping[str, object]:
    try:
        # _UniqueKeyLoader is a SafeLoader.
        document: object = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)  # noqa: S506
    except RecursionError as error:
        raise _error(path, path.name, "can't be read: it is nested too deeply") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise _error(path, path.name, f"can't be read: {error}") from error
    if not isinstance(document, Mapping):
        raise _error(path, path.name, "is empty or not a mapping")
    return cast("Mapping[str, object]", document)


def _error(path: Path, key: str, message: str) -> StackFileError:
    problems = Problems(str(path))
    problems.add(key, message)
    return StackFileError(problems.found, source=str(path))
