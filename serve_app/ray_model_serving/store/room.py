"""Room for one model: within the disk and the cache's budget, made by eviction, and taken before the first byte."""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager

from ray_model_serving.contract.cache_format import CacheLayout, Manifest
from ray_model_serving.store.disk import allocate, free_bytes, no_space, used_bytes
from ray_model_serving.store.errors import LockTimeoutError
from ray_model_serving.store.eviction import items_of, plan_eviction
from ray_model_serving.store.locks import open_lock
from ray_model_serving.store.staging import Staging

# Held while room is planned and taken, so that two downloads do not count on the same bytes.
_LOCK_NAME = "room"
_POLL_S = 0.05


@contextmanager
def allocated(
    layout: CacheLayout, staging: Staging, manifest: Manifest, *, budget_bytes: int | None, deadline: float
) -> Generator[None]:
    """Within it the model's files are there, each with all its blocks. None is held open: a model may have more files
    than the process may have descriptors.

    Raises :class:`NoSpaceError` before anything is written if the model does not fit; then nothing was evicted.
    """
    with _room_lock(layout, deadline):
        _make_room(layout, staging, manifest, budget_bytes)
        for entry in manifest.files:
            os.close(allocate(staging.files / entry.path, entry.size_bytes))
    yield


def _make_room(layout: CacheLayout, staging: Staging, manifest: Manifest, budget_bytes: int | None) -> None:
    needed = max(0, manifest.size_bytes - used_bytes(staging.files))
    disk_excess = needed - free_bytes(layout.staging)
    if disk_excess <= 0 and budget_bytes is None:
        return  # nothing to weigh, so the cache is not walked
    items = items_of(layout)
    in_cache = sum(item.size_bytes for item in items)
    budget_excess = in_cache + needed - budget_bytes if budget_bytes is not None else 0
    plan = plan_eviction(layout, items, free_bytes=max(disk_excess, budget_excess), keep=manifest.snapshot_id)
    free_now = free_bytes(layout.staging)
    state = f"{free_now} bytes are free"
    if budget_bytes is not None:
        state += f", the cache holds {in_cache} of its budget of {budget_bytes}"
    state += f", and {plan.freed_bytes} of them could go"
    if plan.short_bytes:
        raise no_space(layout.root, state, needed)
    if plan.items and plan.execute() < max(disk_excess, budget_excess):
        raise no_space(layout.root, f"{state}, but came into use meanwhile", needed)


@contextmanager
def _room_lock(layout: CacheLayout, deadline: float) -> Generator[None]:
    lock = open_lock(layout.lock(_LOCK_NAME))
    try:
        while not lock.try_exclusive():
            if time.monotonic() > deadline:
                raise LockTimeoutError(
                    f"{lock.path}: waited until the deadline for {lock.holder()}, which takes room in the cache",
                    hint="look at that process; its death frees the lock",
                )
            time.sleep(_POLL_S)
        lock.sign()
        yield
    finally:
        lock.release()
