"""The page of a rank: its progress, in memory that its guard reads.

A memfd that the rank writes and its guard reads. Every field is a word of 8 bytes in native order,
written with a single aligned store, so that a word is never torn; but two words may be of different
moments. Therefore the rank writes `AUTO_NS` and `PING_NS` before the `PHASE` that they belong to,
and before the `UNGUARDED` that turns the limits on again.

Times are CLOCK_MONOTONIC in nanoseconds; both processes are on one host.
"""

from __future__ import annotations

import enum
import struct

import msgspec

PAGE_BYTES = 4096
MAGIC = 0x756E_6461_7069_0001

# Indices of words.
AUTO_NS = 1
PING_NS = 2
PINGS = 3
PHASE = 4
UNGUARDED = 5
ATOMIC = 6
ATOMIC_SINCE_NS = 7
CALL = 8
EPOCH = 9
RANK = 10

WORD_BYTES = 8
_WORDS = struct.Struct("=11q")


class Phase(enum.IntEnum):
    """The work of the main thread, and its limits."""

    OUTSIDE = 0
    """Not in a wrapped function: no limit."""
    RUNNING = 1
    """In ``initialize``, the health check at the start, or the function: soft and hard timeout."""
    WAITING = 2
    """Waits for a record, or for the completion of others: the controller's timeouts."""
    RECOVERING = 3
    """In ``finalize``, health checks or rank assignment: the hard timeout."""


class Reading(msgspec.Struct, frozen=True, gc=False):
    """One look at a page.

    Attributes:
        auto_ns: when the main thread's interpreter turned last.
        ping_ns: when the function called ``ping`` last; 0 = not yet in this epoch, and no limit.
        pings: how often the process has called ``ping``.
        phase: of the main thread.
        unguarded: depth of ``disable_hang_protection``.
        atomic: depth of ``atomic``.
        atomic_since_ns: when the outermost ``atomic`` began, meaningful where ``atomic`` > 0.
        call: number of the present or last call; -1 = none yet.
        epoch: number of the last epoch that it has entered; -1 = none in this call.
        rank: assigned in that epoch, for the report of a loss; -1 = none.
    """

    auto_ns: int
    ping_ns: int = 0
    pings: int = 0
    phase: Phase = Phase.OUTSIDE
    unguarded: int = 0
    atomic: int = 0
    atomic_since_ns: int = 0
    call: int = -1
    epoch: int = -1
    rank: int = -1


def decode(page: bytes | bytearray | memoryview) -> Reading | None:
    """Return the reading of a page; None = it is no page, too short, or of another version."""
    if len(page) < _WORDS.size:
        return None
    magic, *words = _WORDS.unpack_from(page)
    if magic != MAGIC or not Phase.OUTSIDE <= words[PHASE - 1] <= Phase.RECOVERING:
        return None
    words[PHASE - 1] = Phase(words[PHASE - 1])
    return Reading(*words)


def encode(reading: Reading) -> bytes:
    """Return the words of a page with this reading, for a new page and for tests."""
    return _WORDS.pack(MAGIC, *(getattr(reading, name) for name in Reading.__struct_fields__))
