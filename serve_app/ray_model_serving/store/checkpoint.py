"""The tensors of a model, from the headers of its safetensors files: names, types, sizes, and what a load needs.

No weights are read and torch is not imported, so that ``ray-model inspect`` answers from a few kilobytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ray_model_serving.contract.cache_format import FileEntry
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.store.errors import InvalidModelFileError, NoWeightsError, first_few
from ray_model_serving.store.file_checks import INDEX_SUFFIX, read_index, sniff
from ray_model_serving.store.tensor_headers import DTYPE_BYTES, TensorHeader, header_length, parse_header

SUFFIX = ".safetensors"
_STORED_AS: Mapping[Dtype, str] = {Dtype.FLOAT32: "F32", Dtype.FLOAT16: "F16", Dtype.BFLOAT16: "BF16"}
# Integers stay what they are, and 8-bit floats mean nothing without their scales.
_CONVERTIBLE = frozenset({"F64", "F32", "F16", "BF16"})
# One request usually brings the whole header; a larger one costs a second.
_FIRST_READ_BYTES = 256 * 1024

ReadStart = Callable[[str, int], bytes]
"""``(path, length)`` to the first bytes of that file."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Tensors by name, and the file that each is in."""

    tensors: Mapping[str, TensorHeader]
    files: Mapping[str, str]

    @property
    def size_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors.values())

    def bytes_by_dtype(self) -> dict[str, int]:
        """Bytes in the file by the format's type name."""
        totals: dict[str, int] = {}
        for tensor in self.tensors.values():
            totals[tensor.dtype] = totals.get(tensor.dtype, 0) + tensor.size_bytes
        return totals

    def loaded_bytes(self, dtype: Dtype) -> int:
        """Bytes of all tensors once loaded as ``dtype``."""
        return sum(target_bytes(tensor, dtype) for tensor in self.tensors.values())

    def host_peak_bytes(self, dtype: Dtype, device: Device) -> int:
        """Anonymous host memory of a load, at its peak.

        On the CPU: every converted tensor, and nothing for those that are mapped as they are. On a GPU: one pinned
        tensor at a time (safetensors 0.8's own path).
        """
        if device is Device.CUDA:
            return max((tensor.size_bytes for tensor in self.tensors.values()), default=0)
        return sum(target_bytes(tensor, dtype) for tensor in self.tensors.values() if is_converted(tensor, dtype))

    def without(self, patterns: Sequence[str]) -> "Checkpoint":
        """The tensors whose names match none of the patterns."""
        kept = {n: t for n, t in self.tensors.items() if not any(fnmatchcase(n, pattern) for pattern in patterns)}
        return Checkpoint(tensors=kept, files={name: self.files[name] for name in kept})


def is_converted(tensor: TensorHeader, dtype: Dtype) -> bool:
    """Whether a load as ``dtype`` changes this tensor's type."""
    return dtype is not Dtype.AUTO and tensor.dtype in _CONVERTIBLE and tensor.dtype != _STORED_AS[dtype]


def target_bytes(tensor: TensorHeader, dtype: Dtype) -> int:
    """Bytes of one tensor once loaded as ``dtype``."""
    if not is_converted(tensor, dtype):
        return tensor.size_bytes
    return int(tensor.elements * DTYPE_BYTES[_STORED_AS[dtype]])


def read_directory(directory: Path, files: Sequence[FileEntry]) -> Checkpoint:
    """The checkpoint of a snapshot on disk; see :func:`read_checkpoint`."""

    def read_start(path: str, length: int) -> bytes:
        with (directory / path).open("rb") as file:
            return file.read(length)

    return read_checkpoint(files, read_start)


def read_checkpoint(files: Sequence[FileEntry], read_start: ReadStart) -> Checkpoint:
    """Read all headers. With an index, its shards count and nothing else; without, every safetensors file.

    Raises :class:`NoWeightsError`, or :class:`InvalidModelFileError` with every problem of every file.
    """
    sizes = {entry.path: entry.size_bytes for entry in files}
    indexes = [path for path in sizes if path.endswith(INDEX_SUFFIX)]
    names = sorted(path for path in sizes if path.endswith(SUFFIX))
    if len(indexes) > 1:
        raise InvalidModelFileError(
            f"there are {len(indexes)} shard indexes: {', '.join(sorted(indexes))}", hint="exclude all but one"
        )
    if not names:
        raise NoWeightsError(
            f"no {SUFFIX} file among {len(sizes)} files",
            hint="convert the checkpoint to safetensors; pickled weights are not loaded",
        )
    problems: list[str] = []
    weight_map: Mapping[str, str] | None = None
    if indexes:
        weight_map = _read_index(indexes[0], sizes[indexes[0]], read_start, problems)
        names = sorted(set(weight_map.values()))
    tensors: dict[str, TensorHeader] = {}
    places: dict[str, str] = {}
    for path in names:
        for tensor in _read_file(path, sizes, read_start, problems):
            if tensor.name in places and weight_map is None:
                problems.append(f"{path}: tensor {tensor.name!r} is in {places[tensor.name]} too")
            if weight_map is None or weight_map.get(tensor.name) == path:
                tensors[tensor.name], places[tensor.name] = tensor, path
    problems += [f"{path}: lacks {n!r}, which the index puts there" for n, path in _lost(weight_map, places, problems)]
    if problems:
        raise InvalidModelFileError(
            f"{len(problems)} problems in the model's weights:{first_few(problems)}",
            hint="upload the files again, complete, or exclude what does not belong to the model",
        )
    return Checkpoint(tensors=tensors, files=places)


def _lost(
    weight_map: Mapping[str, str] | None, places: Mapping[str, str], problems: Sequence[str]
) -> list[tuple[str, str]]:
    """Tensors of the index that no shard holds, where the shards themselves could be read."""
    if weight_map is None or problems:
        return []
    return [(name, path) for name, path in weight_map.items() if name not in places]


def _read_index(path: str, size_bytes: int, read_start: ReadStart, problems: list[str]) -> Mapping[str, str]:
    try:
        return read_index(read_start(path, size_bytes) if size_bytes else b"", path)  # no range is 0 bytes long
    except InvalidModelFileError as error:
        problems.append(f"{path}: {error.message}")
        return {}


def _read_file(
    path: str, sizes: Mapping[str, int], read_start: ReadStart, problems: list[str]
) -> Sequence[TensorHeader]:
    if path not in sizes:
        problems.append(f"{path}: is named by the index and is not among the files")
        return ()
    size_bytes = sizes[path]
    data = read_start(path, min(size_bytes, _FIRST_READ_BYTES)) if size_bytes else b""
    if seen := sniff(data, path):
        problems.append(f"{path}: {seen}")
        return ()
    try:
        needed = 8 + header_length(data, size_bytes)
        if needed > len(data):
            data = read_start(path, needed)
        return parse_header(data, size_bytes)
    except InvalidModelFileError as error:
        problems.append(f"{path}: {error.message}")
        return ()
