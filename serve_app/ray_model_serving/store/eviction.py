"""Room in the cache: what would have to go for a model to fit, decided first, then done.

The order: staging that nobody works on, compile caches, snapshots by their last use. The last use of a snapshot is the
time of its lock file, which every ``ensure`` sets; a clock that jumps changes the order and nothing else. What is in
use is locked by whoever uses it and stays.
"""

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ray_model_serving.contract.cache_format import CacheLayout
from ray_model_serving.store.disk import remove, used_bytes
from ray_model_serving.store.locks import open_lock

log = logging.getLogger(__name__)


class Kind(str, Enum):
    """In the order in which they go."""

    STAGING = "staging"
    COMPILED = "compiled"
    SNAPSHOT = "snapshot"


_ORDER = tuple(Kind)


@dataclass(frozen=True, kw_only=True)
class CacheItem:
    """A directory of the cache. ``last_used_s`` is a wall clock time."""

    kind: Kind
    path: Path
    lock_name: str
    size_bytes: int
    last_used_s: float
    in_use: bool


@dataclass(frozen=True, kw_only=True)
class EvictionPlan:
    """What goes, in order. ``short_bytes`` is what is still missing after all of it; 0 if it is enough."""

    layout: CacheLayout
    items: tuple[CacheItem, ...]
    short_bytes: int

    @property
    def freed_bytes(self) -> int:
        return sum(item.size_bytes for item in self.items)

    def execute(self) -> int:
        """Remove the items that are still not in use and return their bytes."""
        return sum(item.size_bytes for item in self.items if _evict(self.layout, item))


def items_of(layout: CacheLayout) -> list[CacheItem]:
    """Everything in the cache that takes room, in the order in which it would go."""
    found = [
        _item(layout, kind, path)
        for kind, directory in (
            (Kind.STAGING, layout.staging),
            (Kind.COMPILED, layout.compiled),
            (Kind.SNAPSHOT, layout.snapshots),
        )
        for path in _children(directory)
    ]
    return sorted(found, key=lambda item: (_ORDER.index(item.kind), item.last_used_s, item.path.name))


def plan_eviction(layout: CacheLayout, items: Sequence[CacheItem], *, free_bytes: int, keep: str = "") -> EvictionPlan:
    """The first items, in order, that free ``free_bytes``; never one in use, nor that whose lock is named ``keep``."""
    chosen: list[CacheItem] = []
    missing_bytes = free_bytes
    for item in items:
        if missing_bytes <= 0:
            break
        if not item.in_use and item.lock_name != keep:
            chosen.append(item)
            missing_bytes -= item.size_bytes
    return EvictionPlan(layout=layout, items=tuple(chosen), short_bytes=max(0, missing_bytes))


def _children(directory: Path) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []


def _item(layout: CacheLayout, kind: Kind, path: Path) -> CacheItem:
    name = path.name.partition(".")[0] if kind is Kind.STAGING else path.name
    lock_name = f"compiled-{name}" if kind is Kind.COMPILED else name
    return CacheItem(
        kind=kind,
        path=path,
        lock_name=lock_name,
        size_bytes=used_bytes(path),
        last_used_s=_last_used_s(layout.lock(lock_name), path),
        in_use=_is_in_use(layout.lock(lock_name)),
    )


def _last_used_s(lock: Path, path: Path) -> float:
    for candidate in (lock, path):
        try:
            return candidate.stat().st_mtime
        except OSError:
            continue
    return 0.0


def _is_in_use(path: Path) -> bool:
    """Whether anybody holds the lock. Where there are no locks that can't be known, so everything is."""
    if not path.exists():
        return False
    lock = open_lock(path)
    try:
        return not lock.try_exclusive() or not lock.is_exclusive
    finally:
        lock.release()


def _evict(layout: CacheLayout, item: CacheItem) -> bool:
    lock = open_lock(layout.lock(item.lock_name))
    try:
        if not lock.try_exclusive() or not lock.is_exclusive:
            return False
        log.warning("evicting %s %s, %d bytes", item.kind.value, item.path.name, item.size_bytes)
        if item.kind is Kind.STAGING:
            remove(item.path)
            return True
        # Out of sight by a rename first, so that nobody finds half of it.
        aside = layout.staging / f"{item.lock_name}.{uuid.uuid4().hex}"
        item.path.rename(aside)
        remove(aside)
        return True
    except OSError as error:
        log.warning("%s can't be evicted: %s", item.path, error.strerror)
        return False
    finally:
        lock.release()
