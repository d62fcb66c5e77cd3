"""Headers of safetensors files: names, types, shapes and sizes of tensors, without the weights and without torch.

The format: 8 bytes with the header's length, a JSON header, then the data, covered without gaps or overlaps
(https://huggingface.co/docs/safetensors/index).
"""

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ray_model_serving.store.errors import InvalidModelFileError

LENGTH_BYTES = 8
# The bound of the safetensors library itself (version 0.8).
MAX_HEADER_BYTES = 100_000_000
DTYPE_BYTES: Mapping[str, float] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
    "F4": 0.5, "F6_E2M3": 0.75, "F6_E3M2": 0.75,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TensorHeader:
    """One tensor of a file; ``dtype`` is the format's own name, such as ``BF16``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def header_length(first_bytes: bytes, file_bytes: int) -> int:
    """The length of the JSON header. Raises :class:`InvalidModelFileError` where the file can't hold it."""
    if file_bytes < LENGTH_BYTES or len(first_bytes) < LENGTH_BYTES:
        raise InvalidModelFileError(f"has {file_bytes} bytes, too few for a safetensors header")
    (length,) = struct.unpack("<Q", first_bytes[:LENGTH_BYTES])
    if length > MAX_HEADER_BYTES or LENGTH_BYTES + length > file_bytes:
        raise InvalidModelFileError(
            f"says its header has {length} bytes, the file has {file_bytes}: it is cut or not safetensors"
        )
    return length


def read_header_bytes(read: Callable[[int], bytes], file_bytes: int) -> bytes:
    """The length field and the JSON header, from a reader that starts at the beginning of the file."""
    first = read(LENGTH_BYTES)
    return first + read(header_length(first, file_bytes))


def parse_header(data: bytes, file_bytes: int) -> tuple[TensorHeader, ...]:
    """Tensors in the order of their data. Raises :class:`InvalidModelFileError` for anything the format forbids."""
    length = header_length(data, file_bytes)
    try:
        document: Any = json.loads(data[LENGTH_BYTES : LENGTH_BYTES + length])
        entries = cast("dict[str, Any]", document)
        metadata = entries.pop("__metadata__", None)
        if metadata is not None and not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("its __metadata__ has values that are no text")
        read = [_tensor(name, entry) for name, entry in entries.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidModelFileError(f"has a header that is not safetensors' ({error})") from error
    read.sort(key=lambda item: item[1:])  # an empty tensor begins where its neighbour does
    position = 0
    for tensor, begin, end in read:
        if begin != position or end - begin != tensor.size_bytes:
            raise InvalidModelFileError(f"has a hole, an overlap or a wrong size at tensor {tensor.name!r}")
        position = end
    expected = LENGTH_BYTES + length + position
    if expected != file_bytes:
        state = "it is cut" if file_bytes < expected else "it has bytes after the last tensor"
        raise InvalidModelFileError(f"has {file_bytes} bytes, its header describes {expected}: {state}")
    return tuple(tensor for tensor, _, _ in read)


def _tensor(name: str, entry: Any) -> tuple[TensorHeader, int, int]:
    shape = tuple(_whole(extent) for extent in entry["shape"])
    begin, end = (_whole(offset) for offset in entry["data_offsets"])
    dtype = str(entry["dtype"])
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"tensor {name!r} has the unknown type {dtype!r}")
    size_bytes = int(math.prod(shape) * DTYPE_BYTES[dtype])
    return TensorHeader(name=name, dtype=dtype, shape=shape, size_bytes=size_bytes), begin, end


def _whole(value: Any) -> int:
    """As strict as the safetensors library, which takes neither 2.0 nor a text."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no extent or offset")
    return value
