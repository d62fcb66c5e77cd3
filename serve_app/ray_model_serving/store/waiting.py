"""Waiting for a snapshot that another process of the node fetches, and holding it once it is there."""

import logging
import time

from ray_model_serving.contract.cache_format import CacheLayout, Manifest
from ray_model_serving.store import cache
from ray_model_serving.store.errors import LockTimeoutError
from ray_model_serving.store.locks import HeldLock

log = logging.getLogger(__name__)

POLL_S = 0.1
LOOK_UP_TRIES = 20
# Who waits looks soon at first and never later than this part of what it has waited.
_POLL_LEAST_S, _POLL_FRACTION = 0.01, 0.05
_LOG_WAIT_S = 30.0


def wait_for_whole(
    layout: CacheLayout, lock: HeldLock, identity: str, manifest: Manifest | None, *, deadline: float
) -> bool:
    """Wait until the snapshot is whole, or it is this process's turn to fetch it (False).

    Those who waited look for themselves: the one they waited for may have failed. ``deadline`` is on the monotonic
    clock; after it :class:`LockTimeoutError` names the holder.
    """
    started = told_s = time.monotonic()
    while True:
        if cache.find_whole(layout, identity, manifest) is not None:
            return True
        if lock.try_exclusive():
            lock.sign()
            return cache.find_whole(layout, identity, manifest) is not None
        if layout.snapshot(identity).exists() and lock.try_shared():
            # Only shared holders: they use a snapshot that broke under them. It is replaced beside them.
            return cache.find_whole(layout, identity, manifest) is not None
        waited_s = time.monotonic() - started
        if time.monotonic() > deadline:
            raise LockTimeoutError(
                f"snapshot {identity}: waited {waited_s:.0f} s for {lock.holder()}, which holds {lock.path}",
                hint="look at that process; its death frees the lock",
            )
        if time.monotonic() > told_s + _LOG_WAIT_S:
            told_s += _LOG_WAIT_S
            log.info("waiting for %s, which holds the lock of snapshot %s", lock.holder(), identity)
        time.sleep(min(POLL_S, max(_POLL_LEAST_S, _POLL_FRACTION * waited_s)))


def held_whole(layout: CacheLayout, lock: HeldLock, identity: str, manifest: Manifest | None) -> Manifest | None:
    """Take the lock shared and look again: converting a lock is not atomic, and an evictor may come between."""
    for _ in range(LOOK_UP_TRIES):
        if lock.try_shared():
            return cache.find_whole(layout, identity, manifest)
        time.sleep(POLL_S)
    return None
