"""Are these files a model? Error pages, Git LFS pointers, cut and incomplete checkpoints are found before any use.

Only the first bytes of each file are read.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from ray_model_serving.contract.cache_format import Manifest
from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.store import checksums
from ray_model_serving.store.errors import DigestMismatchError, InvalidModelFileError, first_few
from ray_model_serving.store.tensor_headers import parse_header, read_header_bytes

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_MARKUP = (b"<!doctype html", b"<html", b"<?xml", b"<error>")
_MARKUP_SUFFIXES = (".html", ".htm", ".xml", ".svg", ".md")
_PEEK_BYTES = 512
INDEX_SUFFIX = ".safetensors.index.json"


def check_files(directory: Path, paths: Iterable[str], source: str) -> None:
    """Raises :class:`InvalidModelFileError` with every file that is not what its name says."""
    listed = list(paths)
    problems = [f"{path}: {problem}" for path in listed if (problem := _problem_of(directory / path))]
    for path in listed:
        if path.endswith(INDEX_SUFFIX) and not any(problem.startswith(f"{path}: ") for problem in problems):
            problems += _missing_shards(directory, path, set(listed))
    if problems:
        raise InvalidModelFileError(
            f"{source}: {len(problems)} files are not what a model needs:{first_few(problems)}",
            hint="upload the files again from a complete checkout (git lfs pull) and compare their sizes",
        )


def check_digests(directory: Path, manifest: Manifest, computed: dict[str, str]) -> None:
    """Raises :class:`DigestMismatchError` with every file that differs from the store's checksum.

    ``computed`` has the checksums that came out of the download, by path; what it lacks is read from disk.
    """
    problems: list[str] = []
    for entry in manifest.files:
        if entry.checksum is None or entry.checksum_type is None:
            continue  # the store has none for the whole object: size and ETag are what there is, and the report says so
        actual = computed.get(entry.path) or checksums.of_file(directory / entry.path, entry.checksum_type)
        if actual != entry.checksum:
            problems.append(f"{entry.path}: {entry.checksum_type} is {actual}, the store says {entry.checksum}")
    if problems:
        raise DigestMismatchError(
            f"{manifest.source}: {len(problems)} files differ from the store's checksums:{first_few(problems)}",
            hint="fetch again; if it stays, the path to the store changes bytes or the object is damaged",
        )


def sniff(first_bytes: bytes, name: str) -> str | None:
    """What the first bytes say a file is instead of what its name says, or None."""
    if first_bytes.startswith(_LFS_POINTER):
        return "is a Git LFS pointer, not the file itself"
    start = first_bytes.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(_MARKUP) and not name.endswith(_MARKUP_SUFFIXES):
        return "is an HTML or XML page, such as an error page that was saved under this name"
    return None


def read_index(content: bytes, path: str) -> Mapping[str, str]:
    """Tensor to the path of its shard, from the text of an index at ``path``. Raises :class:`InvalidModelFileError`."""
    parent = path.rpartition("/")[0]
    try:
        document: Any = json.loads(content)
        weight_map = cast("Mapping[str, Any]", document["weight_map"])
        wrong = [name for name, shard in weight_map.items() if not isinstance(shard, str)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidModelFileError(f"is not a readable index of shards ({error})") from error
    if wrong:
        raise InvalidModelFileError(f"is not a readable index of shards (no file name for {wrong[0]!r})")
    return {name: f"{parent}/{shard}" if parent else shard for name, shard in weight_map.items()}


def _problem_of(path: Path) -> str | None:
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        problem = sniff(file.read(_PEEK_BYTES), path.name)
        if problem or not path.name.endswith(".safetensors"):
            return problem
        file.seek(0)
        try:
            parse_header(read_header_bytes(file.read, size_bytes), size_bytes)
        except ModelServingError as error:
            return error.message
    return None


def _missing_shards(directory: Path, index: str, listed: set[str]) -> list[str]:
    try:
        expected = set(read_index((directory / index).read_bytes(), index).values())
    except InvalidModelFileError as error:
        return [f"{index}: {error.message}"]
    return [f"{index}: names shard {shard}, which is not among the files" for shard in sorted(expected - listed)]
