"""How much memory this process may still take: the tightest cgroup limit (v1 or v2) over what is in use for good.

Page cache does not count as in use: the kernel drops it before it kills.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

# cgroup v1 writes "no limit" as a number close to 2^63.
_UNLIMITED_BYTES = 2**60


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """One cgroup's limit and its anonymous and shared memory, in bytes."""

    path: Path
    limit_bytes: int
    used_bytes: int

    @property
    def available_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)


def tightest_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """The limit with the least room among this process's cgroups and their parents, or None where there is none.

    A file that can't be read or understood is no limit, with a line in the log: this check only spares a load that the
    kernel would end. ``root`` is where ``/proc`` and ``/sys`` are looked for.
    """
    path = root / "proc/self/cgroup"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        log.warning("%s says nothing of this process's memory limit: %s", path, error)
        return None
    limits = [limit for line in lines for limit in _limits(root, line)]
    return min(limits, key=lambda limit: limit.available_bytes, default=None)


def _limits(root: Path, line: str) -> Iterator[MemoryLimit]:
    """The limits on the way up from one line of ``/proc/self/cgroup``, ``hierarchy:controllers:path``."""
    fields = line.split(":", 2)
    if len(fields) != 3:
        log.warning("%s has the line %r, which names no cgroup", root / "proc/self/cgroup", line)
        return
    _, controllers, path = fields
    mount = root / "sys/fs/cgroup"
    names = ("memory.max", ("anon", "shmem"))
    if controllers:
        if "memory" not in controllers.split(","):
            return
        mount, names = mount / "memory", ("memory.limit_in_bytes", ("total_rss", "total_shmem"))
    parts = [part for part in path.split("/") if part not in ("", "..")]
    # In a container the path may be the host's, of which nothing but the mount's own top is visible.
    for depth in range(len(parts), -1, -1):
        directory = mount.joinpath(*parts[:depth])
        limit = _read_limit(directory, *names)
        if limit is not None:
            yield limit


def _read_limit(directory: Path, limit_name: str, used_names: tuple[str, ...]) -> MemoryLimit | None:
    try:
        text = (directory / limit_name).read_text(encoding="ascii").strip()
        lines = (directory / "memory.stat").read_text(encoding="ascii").splitlines()
        limit_bytes = _UNLIMITED_BYTES if text == "max" else int(text)
        stat = dict(line.split(maxsplit=1) for line in lines)
        used_bytes = sum(int(stat.get(name, "0")) for name in used_names)
    except OSError:
        return None
    except ValueError as error:
        log.warning("%s or memory.stat beside it is not what the kernel writes: %s", directory / limit_name, error)
        return None
    if limit_bytes >= _UNLIMITED_BYTES:
        return None
    return MemoryLimit(path=directory / limit_name, limit_bytes=limit_bytes, used_bytes=used_bytes)
