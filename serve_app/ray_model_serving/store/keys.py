"""Object keys to file names: which objects belong to a model, and which keys are refused."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from ray_model_serving.contract.cache_format import RECORD_NAME
from ray_model_serving.store.errors import UnusableKeysError, first_few

# Linux: NAME_MAX bytes of one path component; PATH_MAX leaves room for the cache root in front.
_NAME_MAX_BYTES = 255
_PATH_MAX_BYTES = 3072


def is_selected(path: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether a relative path belongs to the model. ``*`` in a pattern also crosses ``/``, as in ``*.bin``.

    A ``snapshot.json`` is a cache's own record: a bucket filled from a cache directory must give the same model.
    """
    if path == RECORD_NAME:
        return False
    return _matches(path, include) and not _matches(path, exclude)


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def problem_of(path: str) -> str | None:
    """Why a relative key can't be a file below the snapshot directory, or None."""
    parts = path.split("/")
    if path.endswith("/"):
        return "ends with a slash but has content"
    if path.startswith("/"):
        return "is absolute"
    if ".." in parts or "." in parts:
        return "has a '.' or '..' segment"
    if "" in parts:
        return "has an empty segment"
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        return "has a control character"
    too_long = any(_encoded_bytes(part) > _NAME_MAX_BYTES for part in parts)
    if too_long or _encoded_bytes(path) > _PATH_MAX_BYTES:
        return "is longer than a file name may be"
    return None


def _encoded_bytes(text: str) -> int:
    return len(text.encode("utf-8", errors="surrogatepass"))


def check_paths(paths: Iterable[str]) -> None:
    """Raises :class:`UnusableKeysError` with every key that can't be a file below the snapshot directory."""
    listed = sorted(paths)
    problems = [f"{path!r} {problem}" for path in listed if (problem := problem_of(path))]
    known = set(listed)
    for path in listed:
        parents = (path[:index] for index, character in enumerate(path) if character == "/")
        problems += [f"{path!r} is below {parent!r}, which is an object too" for parent in parents if parent in known]
    if problems:
        raise UnusableKeysError(
            f"{len(problems)} object keys can't be files of a model:{first_few(problems)}",
            hint="rename or remove these objects, or leave them out with exclude patterns",
        )
