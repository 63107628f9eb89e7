"""Recognizes errors that are somebody else's: of a peer that is gone, or that has failed. Pure.

A save that fails on one rank is raised on all of them, with a message that names the one as
``rank 3: `` (see `undaunted.checkpointing.errors`), or as ``ranks:dict_keys([3])`` by torch. Which
of them is seen first is chance, and the others are often stopped before they can say anything.
"""

from __future__ import annotations

import re

from undaunted.attribution.communication import waiting_in
from undaunted.attribution.stacks import parse_traceback

# Parts of messages, by who writes them.
_TEXTS = (
    # gloo
    r"Connection closed by peer",
    r"Connection reset by peer",
    r"Application timeout caused pair closure",
    r"Timed out waiting \d+ ?ms for (?:recv|send)",
    r"gloo/transport/.{0,200}(?:Read|Write|writev?|Socket) ?(?:error|closed)",
    r"gloo/transport/.{0,200}(?:Broken pipe|Connection refused|Socket closed)",
    r"Gloo connectFullMesh failed",
    r"failed to pass monitoredBarrier",
    # NCCL
    r"ncclRemoteError",
    r"remote process exited or there was a network error",
    r"Watchdog caught collective operation timeout",
    r"NCCL communicator was aborted",
    r"NCCL watchdog thread terminated",
    r"we are taking the entire process down",
    # TCPStore
    r"[Ff]ailed to recv, got 0 bytes",
    r"(?:recvValue|recvVector|sendBytes|recvBytes).{0,40}failed",
    r"wait timeout after \d+ ?ms",
    r"Timed out after \d+ seconds waiting for clients",
    r"client socket has (?:timed out|failed to connect)",
    r"TCPStore.{0,80}(?:Broken pipe|timed? ?out)",
    r"Connection was likely closed",
    r"^\s?(?:Broken pipe|Connection refused|Socket closed)\s?$",  # older torch says no more
)
_PATTERN = re.compile("|".join(_TEXTS))
_DISTRIBUTED_ERRORS = frozenset(
    {"DistBackendError", "DistNetworkError", "DistStoreError", "DistError"}
)
_MAX_CHARACTERS = 64 << 10
_KINDS = "undaunted.checkpointing."
# The first rank that is named, and whether what follows is its failure; its host may be between.
_FIRST = re.compile(r"\branks? (\d{1,9})((?: \([^()]*\))?: )?")
# torch's own saves and loads: raised on all ranks, with the ranks that have failed.
_OF_CHECKPOINT = re.compile(r"CheckpointException ranks:dict_keys\(\[(\d{1,9})")


def names_lost_peer(text: str) -> bool:
    """Return whether a message is one that communication libraries write of a peer that is gone."""
    return bool(_PATTERN.search(text[-_MAX_CHARACTERS:]))


def is_peer_lost(kind: str, message: str, traceback: str) -> bool:
    """Return whether an exception tells of a lost peer rather than of a fault of its own rank.

    The same words outside of torch's communication (a download, say) are the rank's own failure.

    Args:
        kind: name of the exception's class.
        message: its text.
        traceback: as Python prints it, may be empty.
    """
    if is_of_a_socket(kind) and not raised_in_communication(traceback):
        return False
    return kind in _DISTRIBUTED_ERRORS or names_lost_peer(message)


def is_of_a_socket(kind: str) -> bool:
    """Return whether Python raises a class of this name for any connection or pipe."""
    return kind.startswith(("Connection", "BrokenPipe", "Timeout"))


def raised_in_communication(traceback: str) -> bool:
    """Return whether an exception was raised in a collective or while waiting for a store."""
    return bool(waiting_in(parse_traceback(traceback)))


def failed_rank(exception: str) -> int | None:
    """Return the rank that an exception says has failed, its own or another; None = it names none.

    Args:
        exception: ``KIND: MESSAGE``, the kind with its module.
    """
    kind, _, message = exception.partition(": ")
    if kind.rpartition(".")[2] == "CheckpointException":
        found = _OF_CHECKPOINT.match(message)
        return int(found[1]) if found else None
    first = _FIRST.search(message) if kind.startswith(_KINDS) else None
    return int(first[1]) if first and first[2] else None
