"""What a cache directory holds, and whether the bytes of its snapshots are still those that the store described."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ray_model_serving.contract.cache_format import CacheLayout
from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.store.cache import examine, find_whole
from ray_model_serving.store.eviction import CacheItem, Kind, items_of
from ray_model_serving.store.file_checks import check_digests, check_files
from ray_model_serving.store.locks import open_lock
from ray_model_serving.store.report import files_by_check


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """``items`` in the order in which they would be evicted; ``sources`` by snapshot id, of whole ones."""

    layout: CacheLayout
    items: tuple[CacheItem, ...]
    sources: dict[str, str]

    @property
    def size_bytes(self) -> int:
        return sum(item.size_bytes for item in self.items)


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The outcome for one snapshot; ``problem`` is empty where every byte is right."""

    snapshot_id: str
    source: str
    size_bytes: int
    files_by_check: dict[str, int]
    problem: str


def inventory(root: Path) -> Inventory:
    """Read a cache directory; nothing is changed."""
    layout = CacheLayout(root.absolute())
    items = tuple(items_of(layout))
    names = [item.path.name for item in items if item.kind is Kind.SNAPSHOT]
    found = {name: manifest for name in names if (manifest := find_whole(layout, name))}
    return Inventory(layout=layout, items=items, sources={name: manifest.source for name, manifest in found.items()})


def verify(root: Path) -> Iterator[Verification]:
    """Read every byte of every snapshot again and compare it with the record, holding the snapshot's lock shared."""
    layout = CacheLayout(root.absolute())
    for item in items_of(layout):
        if item.kind is Kind.SNAPSHOT:
            yield _verify(layout, item.path.name)


def _verify(layout: CacheLayout, identity: str) -> Verification:
    lock = open_lock(layout.lock(identity))
    try:
        lock.try_shared()  # only keeps eviction away; what is evicted meanwhile is a problem that says so
        manifest, problem = examine(layout, identity)
        if manifest is None:
            return Verification(snapshot_id=identity, source="", size_bytes=0, files_by_check={}, problem=problem)
        try:
            check_digests(layout.snapshot(identity), manifest, {})
            check_files(layout.snapshot(identity), [entry.path for entry in manifest.files], identity)
        except (ModelServingError, OSError) as error:
            problem = str(error)
        return Verification(
            snapshot_id=identity,
            source=manifest.source,
            size_bytes=manifest.size_bytes,
            files_by_check=files_by_check(manifest),
            problem=problem,
        )
    finally:
        lock.release()
