"""Which other files an ONNX file keeps its weights in, read from the file itself without the onnx package.

Only the lengths of weights inside the file are read. Field numbers are those of
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto (IR version 10).
"""

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from ray_model_serving.store.errors import InvalidModelFileError

_MAX_BYTES = 2**31
"""Protobuf's own bound on a message."""
_KINDS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}


def external_files(path: Path) -> frozenset[str]:
    """The files beside an ONNX file that hold weights, relative to it.

    Raises :class:`InvalidModelFileError` for what is not ONNX, and for places outside the model's directory.
    """
    size_bytes = path.stat().st_size
    if not 0 < size_bytes < _MAX_BYTES:
        raise InvalidModelFileError(f"{path.name}: has {size_bytes} bytes, an ONNX file has 1 to {_MAX_BYTES - 1}")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        try:
            found = frozenset(_locations(data))
        except (IndexError, ValueError) as error:
            raise InvalidModelFileError(f"{path.name}: is cut or not an ONNX file ({error})") from error
    for location in found:
        parts = PurePosixPath(location).parts
        if not parts or location.startswith("/") or ".." in parts or "\0" in location:
            raise InvalidModelFileError(
                f"{path.name}: keeps weights in {location!r}, which is not below the model's directory",
                hint="save the model again with its external data beside it",
            )
    return found


def _locations(data: mmap.mmap) -> Iterator[str]:
    """Values of the entries with key ``location``, over all tensors of all graphs."""
    left = [("model", 0, len(data))]
    while left:
        kind, start, end = left.pop()
        if kind == "entry":
            entry = {number: data[begin:stop] for number, begin, stop in _fields(data, start, end)}
            if entry.get(1) == b"location":
                yield entry.get(2, b"").decode()
            continue
        for number, begin, stop in _fields(data, start, end):
            if inner := _KINDS[kind].get(number):
                left.append((inner, begin, stop))


def _fields(data: mmap.mmap, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """``(number, begin, end)`` of the fields that have a length (https://protobuf.dev/programming-guides/encoding/)."""
    while position < end:
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if wire == 2:
            length, position = _varint(data, position)
            if position + length > end:
                raise ValueError(f"field {number} at byte {position} ends after what holds it")
            yield number, position, position + length
            position += length
        elif wire == 0:
            _, position = _varint(data, position)
        elif wire in (1, 5):
            position += 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {position}")


def _varint(data: mmap.mmap, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"no number at byte {position}")
