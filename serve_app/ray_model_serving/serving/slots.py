"""Bounds how many processes of a node load to a device at once, whatever pods or applications they belong to."""

import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.store.locks import HeldLock, open_lock

_POLL_S = 0.05


class NoLoadSlotError(ModelServingError):
    """Other processes of the node kept loading for too long."""

    kind = "no_load_slot"
    permanent = False


@contextmanager
def load_slot(locks: Path, *, at_once: int, deadline_s: float) -> Generator[None]:
    """Hold one of ``at_once`` slots; waits for one up to ``deadline_s``, then raises :class:`NoLoadSlotError`.

    A slot is a lock on a file in ``locks``, which the kernel releases when its holder dies. The files are never
    removed: a removed one could be locked twice, under its old and its new inode.
    """
    with suppress(OSError):  # a cache that can't be written has no slots to keep; open_lock says so
        locks.mkdir(parents=True, exist_ok=True)
    paths = [locks / f"load-slot-{number}" for number in range(at_once)]
    end = time.monotonic() + deadline_s
    while (slot := _first_free(paths)) is None:
        if time.monotonic() >= end:
            raise NoLoadSlotError(
                f"{at_once} loads were under way on this node for {deadline_s:g} s",
                hint="look for a load that hangs, or raise loads_at_once_per_node where memory allows it",
            )
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        slot.release()


def _first_free(paths: list[Path]) -> HeldLock | None:
    for path in paths:
        lock = open_lock(path)
        if lock.try_exclusive():
            return lock
        lock.release()
    return None
