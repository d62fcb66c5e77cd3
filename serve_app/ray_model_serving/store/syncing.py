"""Writes files back to the disk while they are still growing, so that the fsync at the end has little left to do."""

import os
import threading
from collections.abc import Iterable
from pathlib import Path

_INTERVAL_S = 0.2


class Syncer:
    """A thread that syncs files below a directory whose bytes were written since it last looked."""

    def __init__(self, files: Path) -> None:
        self._files = files
        self._dirty: set[str] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="fetch-sync", daemon=True)
        self._thread.start()

    def wrote(self, path: str) -> None:
        with self._lock:
            self._dirty.add(path)

    def stop(self) -> None:
        """Returns when no sync is under way."""
        self._stop.set()
        self._thread.join()

    def raise_if_failed(self) -> None:
        """The kernel reports a failed write-back once; here it was seen, so here it has to be raised."""
        if self._error:
            raise self._error

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            with self._lock:
                paths, self._dirty = self._dirty, set()
            self._sync(paths)

    def _sync(self, paths: Iterable[str]) -> None:
        for path in paths:
            if self._stop.is_set():
                return
            try:
                descriptor = os.open(self._files / path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)
            except OSError as error:
                self._error = error
                return
