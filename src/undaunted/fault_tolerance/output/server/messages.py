"""Messages between a launcher and the log server.

Fields are only added, with defaults. A launcher sends `Lines` while no more than a window of them
is unanswered, so that what waits is bounded.
"""

from __future__ import annotations

import msgspec

# Longest data of one message; a frame has room for it and its other fields.
MOST_BYTES = 512 * 1024
# What may be on its way on one connection, in bytes.
WINDOW_BYTES = 768 * 1024
_LEAST_WINDOW_BYTES = 64 * 1024
LONGEST_NAME = 64  # of a sender


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class Open(_Message, frozen=True):
    """I am ``sender``, a launcher; random text that no other has."""

    sender: str


class Ready(_Message, frozen=True):
    """Send, and leave no more than ``window`` bytes unanswered.

    ``written`` is your last message that was written, -1 = none. Where you are not ``known``, some
    that you have sent before may have been written nevertheless.
    """

    sender: str
    written: int
    window: int
    known: bool = False


class Lines(_Message, frozen=True):
    """Append whole lines to a file. Numbers rise by one with each message of a sender."""

    sender: str
    number: int
    path: str
    data: bytes


class Written(_Message, frozen=True):
    """All messages of a sender up to this number are written, or never will be."""

    sender: str
    number: int


FromSender = Open | Lines
ToSender = Ready | Written


def window(queue_bytes: int, peers: int) -> int:
    """Return the window of one of so many peers that share a queue."""
    return max(_LEAST_WINDOW_BYTES, min(WINDOW_BYTES, queue_bytes // max(1, peers)))


def size(lines: Lines) -> int:
    """Return what a message counts for in a window, in bytes."""
    return len(lines.data) + len(lines.path) + 64
