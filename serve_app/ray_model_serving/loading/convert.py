"""A checkpoint to sharded safetensors: what ``ray-model convert`` does.

The target appears whole, by one rename, or not at all.
"""

import errno
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.settings import Dtype
from ray_model_serving.contract.uris import FileUri
from ray_model_serving.loading import pickles
from ray_model_serving.loading.rewrite import BLOCK_BYTES, Rewrite, copy_files, pack
from ray_model_serving.loading.sampler import PeakSampler
from ray_model_serving.loading.weights import open_weights
from ray_model_serving.store import FetchProgress, Snapshot
from ray_model_serving.store.checkpoint import SUFFIX, Checkpoint, read_directory
from ray_model_serving.store.directory import resolve_directory
from ray_model_serving.store.disk import free_bytes, no_space, remove, sync
from ray_model_serving.store.file_checks import INDEX_SUFFIX

_WEIGHT_FILES = (SUFFIX, INDEX_SUFFIX, pickles.INDEX_SUFFIX, *pickles.SUFFIXES)


class TargetNotEmptyError(ModelServingError):
    """The target of a conversion holds something already."""

    kind = "target_not_empty"


@dataclass(frozen=True, kw_only=True)
class ConvertReport:
    """What was written; bytes are those of tensors, without headers."""

    path: Path
    files: tuple[str, ...]
    tensors: int
    tied: Mapping[str, str]
    """Other name to the name that the bytes are stored under."""
    source_bytes: int
    written_bytes: int
    seconds: Mapping[str, float]
    peak_anon_bytes: int

    def to_json(self) -> dict[str, object]:
        """The document that ``ray-model convert --json`` prints."""
        return {
            "path": str(self.path),
            "files": list(self.files),
            "tensors": self.tensors,
            "tied": dict(self.tied),
            "bytes": {"source": self.source_bytes, "written": self.written_bytes},
            "seconds": {phase: round(seconds, 4) for phase, seconds in self.seconds.items()},
            "memory": {"peak_anon_bytes": self.peak_anon_bytes},
        }


def check_target(target: Path) -> None:
    """Raises :class:`TargetNotEmptyError` unless the target is new or an empty directory."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    raise TargetNotEmptyError(
        f"{target}: is not an empty directory", hint="name a new directory; nothing is ever overwritten"
    )


def convert(
    source: Snapshot,
    target: Path,
    *,
    dtype: Dtype,
    max_shard_bytes: int,
    memory_bytes: int,
    state_key: str | None = None,
    on_progress: Callable[[FetchProgress], None] = lambda _: None,
) -> ConvertReport:
    """Write a snapshot's weights as safetensors into a new directory, its other files beside them.

    ``memory_bytes`` bounds the anonymous memory, from 64 MiB (torch's own share). ``state_key`` is where in a training
    checkpoint the weights are. Raises :class:`TargetNotEmptyError`, NoSpaceError and the errors of ``open_weights``.
    """
    target = target.absolute()
    check_target(target)
    started = time.monotonic()
    with PeakSampler() as sampler:
        weights = open_weights(source.path, source.manifest.files, state_key)
        shards = pack(weights.checkpoint, dtype, max_shard_bytes)
        block_bytes = min(BLOCK_BYTES, memory_bytes // 16)
        rewrite = Rewrite(weights=weights, dtype=dtype, shards=shards, block_bytes=block_bytes)
        others = [entry for entry in source.manifest.files if not entry.path.endswith(_WEIGHT_FILES)]
        target.parent.mkdir(parents=True, exist_ok=True)
        _check_space(target.parent, rewrite.size_bytes + sum(entry.size_bytes for entry in others))
        staging = target.parent / f".{target.name}.{uuid.uuid4().hex}.partial"
        staging.mkdir()
        try:
            rewrite.write(staging, _teller(on_progress, rewrite.size_bytes), index=len(shards) > 1)
            copy_files(source.path, [entry.path for entry in others], staging)
            _check_written(staging, weights.checkpoint)
            converted = time.monotonic()
            _publish(staging, target)
        except BaseException:
            remove(staging)
            raise
    ended = time.monotonic()
    return ConvertReport(
        path=target,
        files=tuple(shards),
        tensors=len(weights.checkpoint.tensors),
        tied=weights.aliases,
        source_bytes=weights.checkpoint.size_bytes,
        written_bytes=rewrite.size_bytes,
        seconds={"convert": converted - started, "commit": ended - converted, "total": ended - started},
        peak_anon_bytes=sampler.peak_anon_bytes,
    )


def _check_space(directory: Path, needed_bytes: int) -> None:
    free = free_bytes(directory)
    if needed_bytes > free:
        raise no_space(directory, f"{free} bytes are free", needed_bytes)


def _teller(on_progress: Callable[[FetchProgress], None], total_bytes: int) -> Callable[[int], None]:
    done_bytes = 0

    def tell(block_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += block_bytes
        on_progress(FetchProgress(phase="convert", bytes_done=done_bytes, bytes_total=total_bytes))

    return tell


def _check_written(staging: Path, wanted: Checkpoint) -> None:
    """Read the headers back as a load does: a hole, an overlap or a tensor too few is an error now, not then."""
    manifest = resolve_directory(FileUri(path=str(staging)), ("*",), ())
    written = read_directory(staging, manifest.files)
    shapes = {name: tensor.shape for name, tensor in wanted.tensors.items()}
    assert {name: tensor.shape for name, tensor in written.tensors.items()} == shapes


def _publish(staging: Path, target: Path) -> None:
    """Sync everything and rename; an empty directory at the target is replaced."""
    found = sorted(staging.rglob("*"), key=lambda path: len(path.parts), reverse=True)
    for path in (*found, staging):
        sync(path)
    try:
        staging.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        check_target(target)  # someone wrote to it meanwhile
        raise
    sync(target.parent)
