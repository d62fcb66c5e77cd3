"""How much host memory is in use and left: of this process, and under the tightest cgroup limit (v1 or v2).

Needs the standard library only: a replica asks before it has imported anything of a model.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

# cgroup v1 writes "no limit" as a number close to 2^63.
_UNLIMITED_BYTES = 2**60
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, kw_only=True)
class Resident:
    """Resident memory of this process, in bytes."""

    anon_bytes: int
    file_bytes: int


def parse_status(text: str) -> Resident:
    """RssAnon and RssFile of a ``/proc/<pid>/status``; 0 where the kernel gives none."""
    values = dict(line.split(":", 1) for line in text.splitlines() if line.startswith("Rss"))
    kib = {name: int(value.split()[0]) for name, value in values.items()}
    return Resident(anon_bytes=kib.get("RssAnon", 0) * 1024, file_bytes=kib.get("RssFile", 0) * 1024)


def read_resident() -> Resident | None:
    """What this process has now, or None where the kernel does not say."""
    try:
        return parse_status(_STATUS.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, IndexError):
        return None


def resident() -> Resident:
    """What this process has now; 0 where the kernel does not say."""
    return read_resident() or Resident(anon_bytes=0, file_bytes=0)


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """One cgroup's limit and its use, in bytes.

    ``used_bytes`` is anonymous and shared memory: the kernel drops page cache before it kills. ``charged_bytes`` is all
    that is charged but the page cache, so kernel memory too: what Ray's memory monitor compares (Ray 2.60).
    """

    path: Path
    limit_bytes: int
    used_bytes: int
    charged_bytes: int = 0

    @property
    def available_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)


@dataclass(frozen=True, kw_only=True)
class _Names:
    """How one version of cgroups calls its files and counters."""

    limit: str
    usage: str
    used: tuple[str, ...]
    cache: tuple[str, ...]


_V1 = _Names(
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    used=("total_rss", "total_shmem"),
    cache=("total_active_file", "total_inactive_file"),
)
_V2 = _Names(limit="memory.max", usage="memory.current", used=("anon", "shmem"), cache=("active_file", "inactive_file"))


class LimitReader:
    """Reads the same cgroups again and again: where they are is looked up once, what they hold at each call."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._groups = list(_groups(root))

    def read(self) -> MemoryLimit | None:
        """The limit with the least room, or None where there is none."""
        limits = [limit for directory, names in self._groups if (limit := _read_limit(directory, names))]
        return min(limits, key=lambda limit: limit.available_bytes, default=None)


def tightest_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """The limit with the least room among this process's cgroups and their parents, or None where there is none.

    A file that can't be read or understood is no limit, with a line in the log: this check only spares a load that the
    kernel would end. ``root`` is where ``/proc`` and ``/sys`` are looked for.
    """
    return LimitReader(root).read()


def _groups(root: Path) -> Iterator[tuple[Path, _Names]]:
    path = root / "proc/self/cgroup"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        log.warning("%s says nothing of this process's memory limit: %s", path, error)
        return
    for line in lines:
        yield from _groups_of(root, line)


def _groups_of(root: Path, line: str) -> Iterator[tuple[Path, _Names]]:
    """The cgroups on the way up from one line of ``/proc/self/cgroup``, ``hierarchy:controllers:path``."""
    fields = line.split(":", 2)
    if len(fields) != 3:
        log.warning("%s has the line %r, which names no cgroup", root / "proc/self/cgroup", line)
        return
    _, controllers, path = fields
    mount, names = root / "sys/fs/cgroup", _V2
    if controllers:
        if "memory" not in controllers.split(","):
            return
        mount, names = mount / "memory", _V1
    parts = [part for part in path.split("/") if part not in ("", "..")]
    # In a container the path may be the host's, of which nothing but the mount's own top is visible.
    for depth in range(len(parts), -1, -1):
        directory = mount.joinpath(*parts[:depth])
        if (directory / names.limit).exists():
            yield directory, names


def _read_limit(directory: Path, names: _Names) -> MemoryLimit | None:
    try:
        text = (directory / names.limit).read_text(encoding="ascii").strip()
        limit_bytes = _UNLIMITED_BYTES if text == "max" else int(text)
        if limit_bytes >= _UNLIMITED_BYTES:
            return None
        lines = (directory / "memory.stat").read_text(encoding="ascii").splitlines()
        stat = dict(line.split(maxsplit=1) for line in lines)
        used_bytes = _total(stat, names.used)
        charged_bytes = _usage(directory / names.usage) - _total(stat, names.cache)
    except OSError:
        return None
    except ValueError as error:
        log.warning("%s or a file beside it is not what the kernel writes: %s", directory / names.limit, error)
        return None
    return MemoryLimit(
        path=directory / names.limit,
        limit_bytes=limit_bytes,
        used_bytes=used_bytes,
        charged_bytes=max(used_bytes, charged_bytes),
    )


def _usage(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0


def _total(stat: Mapping[str, str], names: tuple[str, ...]) -> int:
    return sum(int(stat.get(name, "0")) for name in names)
