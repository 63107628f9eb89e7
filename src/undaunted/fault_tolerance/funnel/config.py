"""What is chosen for the log server of a job. Pure."""

from __future__ import annotations

import zlib
from pathlib import PurePosixPath

import msgspec

_NODES_PER_LEAF = 1536
_CHUNK_BYTES = 64 * 1024
_LEAST_BYTES = 16 * 1024 * 1024


class FunnelConfig(msgspec.Struct, kw_only=True, frozen=True):
    """The log server as the user wants it.

    Attributes:
        root: absolute path of the directory on the server's host that all logs are in.
        port: of the server; with leaves of the first of them, and the server's follows theirs.
        leaves: servers between the launchers and the one that writes.
        queue_bytes: what may wait in a server's memory, in all.
        log_prefix: files that the servers write their own lines to begin so, "" = standard error.
        grace_s: how long the end of the job waits for logs that are still on their way.
        settle_s: how long a server that was just started waits for launchers at the end of the job.
    """

    root: str
    port: int = 50051
    leaves: int = 0
    queue_bytes: int = 256 * 1024 * 1024
    log_prefix: str = ""
    grace_s: float = 60.0
    settle_s: float = 6.0

    def relative(self, path: str) -> str:
        """Return ``path``, which lies below the directory, as the server is told of it.

        Raises:
            ValueError: it does not lie there.
        """
        return str(PurePosixPath(path).relative_to(self.root))

    def entrances(self, host: str, node: str) -> list[str]:
        """Return where a node's logs are taken, the best first; the others are in its place."""
        if not self.leaves:
            return [f"{host}:{self.port}"]
        first = leaf_of(node, self.leaves)
        ports = [self.port + (first + turn) % self.leaves for turn in range(self.leaves)]
        return [f"{host}:{port}" for port in ports]

    def ports(self) -> list[int]:
        """Return the ports of the leaves, then that of the server that writes."""
        return [self.port + index for index in range(self.leaves + 1)]


def leaf_of(node: str, leaves: int) -> int:
    """Return which of so many leaves a node's logs go to first."""
    return zlib.crc32(node.encode()) % leaves


def leaf_count(wanted: int, nodes: int) -> int:
    """Return how many leaves there are: as wanted, or by the number of nodes where that is 0."""
    return wanted or (0 if nodes <= _NODES_PER_LEAF else -(-nodes // _NODES_PER_LEAF))


def queue_bytes(chunks: int) -> int:
    """Return the bound that so many chunks of 64 KiB make, at least 16 MiB; -1 = the default."""
    if chunks < 0:
        return FunnelConfig(root="/").queue_bytes
    return max(_LEAST_BYTES, chunks * _CHUNK_BYTES)
