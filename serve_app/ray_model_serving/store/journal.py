"""The journal of a download: which bytes of which file are on disk, so that a later run fetches only the rest.

A line is appended after its bytes are written, and nothing here is synced: a process that is killed loses nothing that
the kernel has, and after a power cut the journal may claim what the disk lost. So a claim is never trusted; whoever
adopts it reads the bytes again and compares their CRC.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ray_model_serving.store.parts import Extent, Extents, disjoint

VERSION = 1
NAME = "journal"
# One line for each half mebibyte of a model; beyond this the file is not a journal of ours.
_MAX_BYTES = 256 * 1024**2


class Journal:
    """An open journal. Any thread may add to it: each line is one write to a file opened for appending."""

    def __init__(self, directory: Path, identity: str, present: Extents) -> None:
        """Write a new journal in the place of an older one, with what is known to be present."""
        path, fresh = directory / NAME, directory / f"{NAME}.new"
        self._fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o664)
        try:
            lines = [json.dumps(["ray-model-journal", VERSION, identity])]
            lines += [_line(name, extent) for name, extents in present.items() for extent in extents]
            os.write(self._fd, "".join(f"{line}\n" for line in lines).encode())
            fresh.rename(path)
        except BaseException:
            self.close()
            raise

    def add(self, path: str, extent: Extent) -> None:
        """Claim an extent; one that begins at the same byte and is longer takes the place of an earlier claim."""
        os.write(self._fd, f"{_line(path, extent)}\n".encode())

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _line(path: str, extent: Extent) -> str:
    return json.dumps([path, extent.offset, extent.length, extent.crc])


def read_claims(directory: Path, identity: str, sizes: Mapping[str, int]) -> Extents | None:
    """What a journal claims of the files in ``sizes``; None where it is not one of this version and snapshot.

    A line that was cut, or that is not a claim, is left out.
    """
    try:
        path = directory / NAME
        if path.stat().st_size > _MAX_BYTES:
            return None
        header, *lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return None
    if _parsed(header) != ["ray-model-journal", VERSION, identity]:
        return None
    claims: dict[str, list[Extent]] = {}
    for line in lines:
        values = _parsed(line)
        if len(values) == 4 and values[0] in sizes and all(type(value) is int and value >= 0 for value in values[1:]):
            claims.setdefault(values[0], []).append(Extent(offset=values[1], length=values[2], crc=values[3]))
    return {name: disjoint(extents, sizes[name]) for name, extents in claims.items()}


def _parsed(line: str) -> list[Any]:
    try:
        value: Any = json.loads(line)
    except ValueError:
        return []
    return cast("list[Any]", value) if isinstance(value, list) and all(not isinstance(v, list) for v in value) else []
