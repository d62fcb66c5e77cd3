"""How much memory this process may still take: the tightest cgroup limit (v1 or v2) over what is in use for good.

Page cache does not count as in use: the kernel drops it before it kills.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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

    ``root`` is where ``/proc`` and ``/sys`` are looked for.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    limits = [limit for line in lines for limit in _limits(root, line)]
    return min(limits, key=lambda limit: limit.available_bytes, default=None)


def _limits(root: Path, line: str) -> Iterator[MemoryLimit]:
    """The limits on the way up from one line of ``/proc/self/cgroup``, ``hierarchy:controllers:path``."""
    _, controllers, path = line.split(":", 2)
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
        pairs = [line.split() for line in (directory / "memory.stat").read_text(encoding="ascii").splitlines()]
    except OSError:
        return None
    if text == "max" or int(text) >= _UNLIMITED_BYTES:
        return None
    stat = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    used_bytes = sum(stat.get(name, 0) for name in used_names)
    return MemoryLimit(path=directory / limit_name, limit_bytes=int(text), used_bytes=used_bytes)
