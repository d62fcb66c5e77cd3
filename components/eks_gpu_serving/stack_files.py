"""Reads ``Pulumi.<stack>.yaml`` as ``pulumi`` does, without it: same keys, same values, same refusals."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from eks_gpu_serving.settings import StackSettings
from ray_model_serving.contract.problems import Problem, SettingsError, nearest

PROJECT = "eks-gpu-serving"


class StackFileError(SettingsError):
    """A project or stack file that can't be read."""

    kind = "bad_stack_file"


def load_stack(stack: str, start: Path) -> StackSettings:
    """The validated settings of a stack of the project that ``start`` lies in.

    Raises :class:`SettingsError` with every problem of the file at once.
    """
    directory = stack_directory(start)
    path = directory / f"Pulumi.{stack}.yaml"
    if not path.is_file():
        stacks = sorted(file.name.split(".")[1] for file in directory.glob("Pulumi.*.yaml"))
        raise _error(path, "stack", f"got {stack!r}, there is no {path.name} in {directory}; {nearest(stack, stacks)}")
    return StackSettings.from_mapping(stack_mapping(path), source=path.name)


def stack_directory(start: Path) -> Path:
    """Where the project's stack files lie: ``stackConfigDir`` of the nearest ``Pulumi.yaml`` at or above ``start``."""
    for folder in (start, *start.parents):
        project = folder / "Pulumi.yaml"
        if project.is_file():
            return folder / str(_read_yaml(project).get("stackConfigDir", "."))
    raise _error(start, "Pulumi.yaml", f"not found in {start} or above it; run this inside the project")


def stack_mapping(path: Path) -> dict[str, object]:
    """The project's own keys of a stack file, without their namespace. Keys of other namespaces are theirs."""
    config = _read_yaml(path).get("config", {})
    if not isinstance(config, Mapping):
        raise _error(path, "config", f"got {config!r}, must be a mapping")
    items = cast("Mapping[str, object]", config).items()
    return {key.removeprefix(f"{PROJECT}:"): value for key, value in items if key.startswith(f"{PROJECT}:")}


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
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _error(path, path.name, f"can't be read: {error}") from error
    if not isinstance(document, Mapping):
        raise _error(path, path.name, "is empty or not a mapping")
    return cast("Mapping[str, object]", document)


def _error(path: Path, key: str, message: str) -> StackFileError:
    return StackFileError([Problem(path=key, message=message)], source=str(path))
