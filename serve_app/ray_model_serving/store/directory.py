"""A ``file://`` model to a manifest: the directory is used in place, with no copy and no lock."""

from collections.abc import Sequence
from pathlib import Path

from ray_model_serving.contract.cache_format import FileEntry, Manifest
from ray_model_serving.contract.uris import FileUri
from ray_model_serving.store.errors import DirectoryNotFoundError, NoObjectsError
from ray_model_serving.store.keys import is_selected
from ray_model_serving.store.report import MTIME_ETAG


def resolve_directory(uri: FileUri, include: Sequence[str], exclude: Sequence[str]) -> Manifest:
    """The files of a directory that is used in place. A pin of it changes when a file's time does."""
    root = Path(uri.path)
    if not root.is_dir():
        raise DirectoryNotFoundError(
            f"{uri}: no such directory on this machine",
            hint="a file:// model is on disk or in the image already; the path is seen from inside the container",
        )
    files: list[FileEntry] = []
    for path in sorted(item for item in root.rglob("*") if item.is_file()):
        relative = path.relative_to(root).as_posix()
        if is_selected(relative, include, exclude):
            status = path.stat()
            etag = f"{MTIME_ETAG}{status.st_mtime_ns}"
            files.append(FileEntry(path=relative, key=str(path), size_bytes=status.st_size, etag=etag))
    if not files:
        raise NoObjectsError(
            f"{uri}: no files to use, include {list(include)}, exclude {list(exclude)}",
            hint="check the directory and the patterns",
        )
    return Manifest(source=str(uri), files=tuple(files))
