"""The bounds of a download, and how many connections a node's network deserves. Pure."""

import math
from dataclasses import dataclass

# What one connection has in memory, what a dead process loses of it at most, and the least it must bring in stall_s.
BLOCK_BYTES = 512 * 1024
SMALL_PART_BYTES, PART_BYTES, LARGE_PART_BYTES = 4 * 1024**2, 8 * 1024**2, 16 * 1024**2

# "One concurrent request for each 85-90 MB/s of desired network throughput" (read 2026-11):
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-design-patterns.html
_S3_BYTES_PER_S = 85e6
# Below 8, the small files of a model wait for each other; above 64, threads of one process win nothing more.
LEAST_CONNECTIONS, MOST_CONNECTIONS = 8, 64
DEFAULT_CONNECTIONS = 16


@dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """Bounds of one download. Memory in flight is ``connections`` x :data:`BLOCK_BYTES`, whatever the model's size.

    A connection that brings less than one block in ``stall_s`` is given up and its rest asked for anew.
    """

    connections: int
    stall_s: float
    max_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for what no download could work with."""
        _check_positive("connections", self.connections)
        _check_positive("stall_s", self.stall_s)
        if self.max_bytes_per_s is not None:
            _check_positive("max_bytes_per_s", self.max_bytes_per_s)


def _check_positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name}: got {value!r}, must be a number above 0")


def connections_for(network_gbps: float | None) -> int:
    """Connections for a network baseline in Gbit/s, such as 2.5 of a g6.xlarge; without one, a sane number."""
    if network_gbps is None:
        return DEFAULT_CONNECTIONS
    wanted = math.ceil(network_gbps * 1e9 / 8 / _S3_BYTES_PER_S)
    return min(MOST_CONNECTIONS, max(LEAST_CONNECTIONS, wanted))


def part_bytes_for(size_bytes: int, connections: int) -> int:
    """The length of a range: 16 MiB where each connection has 16 or more to fetch, 4 MiB where there is no range of
    8 MiB for each, else 8 MiB.

    S3 advises 8 to 16 MB (the page above). A request costs botocore 1 to 2 ms of the interpreter and the store its time
    to the first byte, whatever its length; short ranges let the connections end together. With four ranges each, the
    last of them is a quarter of the time.
    """
    if size_bytes >= 16 * LARGE_PART_BYTES * connections:
        return LARGE_PART_BYTES
    return PART_BYTES if size_bytes >= PART_BYTES * connections else SMALL_PART_BYTES
