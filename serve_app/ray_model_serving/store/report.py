"""What a fetch hands back: the snapshot, what it cost, and how far it has come."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ray_model_serving.contract.cache_format import FileEntry, Manifest
from ray_model_serving.store.locks import HeldLock

MTIME_ETAG = "mtime-"
"""A file that is used in place has no ETag; its time stands in, so that its snapshot id changes with it."""
PHASES = ("resolve", "wait", "download", "verify", "commit", "total")


@dataclass(frozen=True, kw_only=True)
class FetchProgress:
    """Where a fetch stands; ``bytes_done`` counts bytes on disk in phase ``download``, else it is 0 or the total."""

    phase: str
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, kw_only=True)
class FetchReport:
    """Bytes by where they came from, and seconds of each phase. A download that went on from what an earlier one left
    has bytes of both the store and the node."""

    snapshot_id: str
    path: Path
    bytes_store: int = 0
    bytes_node: int = 0
    bytes_image: int = 0
    seconds: Mapping[str, float]
    files_by_check: Mapping[str, int]
    """How many files were or can be checked by what, such as ``CRC64NVME/FULL_OBJECT`` or ``size and ETag``."""

    def to_json(self) -> dict[str, object]:
        """The document that ``ray-model fetch --json`` prints."""
        return {
            "snapshot_id": self.snapshot_id,
            "path": str(self.path),
            "bytes": {"store": self.bytes_store, "node": self.bytes_node, "image": self.bytes_image},
            "seconds": {phase: round(self.seconds.get(phase, 0.0), 4) for phase in PHASES},
            "files_by_check": dict(self.files_by_check),
        }


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """An immutable directory of model files. Close it when nothing of it is in use any more.

    Until then a shared lock keeps eviction away. A snapshot that is never closed keeps its lock until the process
    ends, which is the safe side.
    """

    path: Path
    snapshot_id: str
    manifest: Manifest
    report: FetchReport
    lock: HeldLock | None = field(default=None, repr=False, compare=False)

    def close(self) -> None:
        """Release the shared lock; more than once is fine."""
        if self.lock is not None:
            self.lock.release()

    def __enter__(self) -> "Snapshot":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def joined(fetched: Mapping[str, Any], loaded: Mapping[str, Any]) -> dict[str, Any]:
    """The reports of a fetch and of a load as one; ``total`` is the sum of both, and last."""
    seconds = {**fetched["seconds"], **loaded["seconds"]}
    del seconds["total"]
    seconds["total"] = round(fetched["seconds"]["total"] + loaded["seconds"]["total"], 4)
    return {**fetched, **loaded, "seconds": seconds}


def check_of(entry: FileEntry) -> str:
    """What a file is checked by: its checksum's type, or what there is without one."""
    if entry.checksum_type:
        return entry.checksum_type
    return "size" if entry.etag.startswith(MTIME_ETAG) else "size and ETag"


def files_by_check(manifest: Manifest) -> dict[str, int]:
    """Counts files by :func:`check_of`."""
    return dict(Counter(check_of(entry) for entry in manifest.files))


def snapshot_of(
    path: Path,
    manifest: Manifest,
    seconds: Mapping[str, float],
    *,
    source: str,
    lock: HeldLock | None = None,
    fetched_bytes: int = 0,
) -> Snapshot:
    """A snapshot and its report: ``fetched_bytes`` came from the store, all others from ``source``, node or image."""
    rest = manifest.size_bytes - fetched_bytes
    report = FetchReport(
        snapshot_id=manifest.snapshot_id,
        path=path,
        bytes_store=fetched_bytes,
        bytes_node=rest if source == "node" else 0,
        bytes_image=rest if source == "image" else 0,
        seconds=dict(seconds),
        files_by_check=files_by_check(manifest),
    )
    return Snapshot(path=path, snapshot_id=manifest.snapshot_id, manifest=manifest, report=report, lock=lock)
