"""Layout of a page, word by word. `docs/design/pages.md` explains it.

A page is 32 KiB of native-endian unsigned 64-bit words. A single word is stored at once and is
therefore never torn. Whatever needs more than one word is a *record* (see `record`): checksum,
sequence number, length in bytes, body. Times are CLOCK_MONOTONIC in nanoseconds, 0 = has not
happened. Constants name words, counted from the start of the page, unless they end in ``_BYTES``.

Writers: A = the agent, R = the rank that owns the page. Nobody writes what the other one writes,
except that the agent clears a page between rounds, when no rank lives.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple

MAGIC_VALUE = int.from_bytes(b"undauntd", "big")
VERSION_VALUE = 3

PAGE_BYTES = max(32 * 1024, mmap.ALLOCATIONGRANULARITY)  # each page is mapped by itself
WORD_BYTES = 8
PAGE_WORDS = PAGE_BYTES // WORD_BYTES
RECORD_HEADER = 3

# --- single words -------------------------------------------------------------------------------
MAGIC = 0  # A  MAGIC_VALUE
VERSION = 1  # A  VERSION_VALUE; a reader or writer of another version keeps off the page
KICKLESS = 2  # R  1 = the rank could not get at the eventfds, so look at the page now and then
PHASE = 3  # R  snapshot.Phase
EVIDENCE_SIGNAL = 4  # R  signal for which faulthandler is armed, 0 = none
WARMUP_ITERATIONS = 5  # R  1 + the number given to init_workload_monitoring, 0 = none given
ATTACHED_NS = 6  # R
FIRST_LINE_NS = 7  # R
INITIALIZED_NS = 8  # R
FIRST_HEARTBEAT_NS = 9  # R  since the last initialisation
FIRST_STEP_NS = 10  # R
FIRST_ITERATION = 11  # R  1 + iteration
HEARTBEATS = 12  # R  how many
HEARTBEAT_NS = 13  # R  last heartbeat
HEARTBEAT_MAX_NS = 14  # R  largest gap between two heartbeats after the warm-up
HEARTBEAT_WARMUP_NS = 15  # R  the same in the warm-up; always behind the other one
ITERATION = 16  # R  1 + iteration
ITERATION_NS = 17  # R
LAST_CLOSE_NS = 18  # R  when a section was last closed
OUTSIDE_COUNT = 19  # R  times between two sections
OUTSIDE_MAX_NS = 20  # R  the longest of them after the warm-up
OUTSIDE_WARMUP_NS = 21  # R  the same in the warm-up
OUTSIDE_FIRST_NS = 22  # R  the longest time from an initialisation to the first section after it
LEAVING_NS = 23  # R  when the user's program ended
RING_HEAD = 24  # R  sequence number of the newest event, 0 = none; another owner goes on with it
STOP = 25  # A  0 = go on, 1 = wait before you go on, else see `stop_word`
STOP_ASKED = 26  # R  0 = nobody asks, 1 = somebody will, 2 + iteration that was asked about last
STOP_WANTED = 27  # R  why this rank wants all to stop, see `wish_word`; 0 = it does not
HEAD_BYTES = 33 * WORD_BYTES  # all single words, and IDENTITY

WANTED = ("preempted", "requested", "deadline", "suspect", "invalid", "straggler")
# In STOP_ASKED:
LATEST = 2**48  # no iteration is later
EVALUATION = 2**40  # an evaluation counts as so many of them: more than there will be
QUESTIONS = 2**59  # all that is asked about is less
LEFT = 2**60  # added: it asks no more
STOPPED_ALONE = 2**61  # it has stopped and asked nobody
# Why ranks stop, in STOP.
STOP_REASONS = (*WANTED, "restart")

# --- identity: record of two words, pid and start time in clock ticks --------------------------
IDENTITY = 28  # R
IDENTITY_BYTES = 2 * WORD_BYTES

# --- table of sections --------------------------------------------------------------------------
# A slot is used once its name record (sequence 1) is there. The last slot holds all sections that
# found the table full.
SECTIONS = 33  # R
SECTION_SLOTS = 32
SECTION_WORDS = 17
SECTION_NAME = 0  # record, offsets are from the start of the slot
SECTION_NAME_BYTES = 64
SECTION_OPEN_NS = 11  # 0 = closed
SECTION_COUNT = 12  # closings
SECTION_LAST_NS = 13
SECTION_MAX_NS = 14  # the longest time after the warm-up
SECTION_WARMUP_NS = 15  # the same in the warm-up
SECTION_TOTAL_NS = 16  # from entering to leaving, all together
OTHERS = "(others)"  # name of the last slot
STEP_SECTION = "step"  # the one whose limit warm-up replaces

# --- last error: record -------------------------------------------------------------------------
ERROR = SECTIONS + SECTION_SLOTS * SECTION_WORDS  # R
ERROR_WORDS = 1024
ERROR_BYTES = (ERROR_WORDS - RECORD_HEADER) * WORD_BYTES

# --- ring of events: records; event number n is in slot n % RING_SLOTS, with sequence n ----------
RING = ERROR + ERROR_WORDS  # R
RING_SLOTS = 32
RING_WORDS = 32
RING_BYTES = (RING_WORDS - RECORD_HEADER) * WORD_BYTES

# --- mailbox: a request and, with the same sequence number, its reply ----------------------------
REQUEST = RING + RING_SLOTS * RING_WORDS  # R
REQUEST_BYTES = 4096
REPLY = REQUEST + RECORD_HEADER + REQUEST_BYTES // WORD_BYTES  # A
REPLY_BYTES = 1024

# --- what this rank is held to; survives a reset -------------------------------------------------
WARMUP = REPLY + RECORD_HEADER + REPLY_BYTES // WORD_BYTES  # A  how many are warm-up, of each kind
LIMITS = WARMUP + 1  # A  record with the JSON of limits.Limits
LIMITS_BYTES = (PAGE_WORDS - LIMITS - RECORD_HEADER) * WORD_BYTES

assert (IDENTITY + RECORD_HEADER + 2) * WORD_BYTES <= HEAD_BYTES <= SECTIONS * WORD_BYTES
assert RECORD_HEADER + SECTION_NAME_BYTES // WORD_BYTES <= SECTION_OPEN_NS
assert LIMITS_BYTES >= 2048


class Wish(NamedTuple):
    """That all ranks stop: why, one of `WANTED`, and which rank is the reason, None = none is."""

    why: str
    rank: int | None


def stop_word(iteration: int, why: str) -> int:
    """Return what STOP has when ranks stop after an iteration."""
    return (iteration + 1) * 8 + STOP_REASONS.index(why)


def stop_of(word: int) -> tuple[int, str] | None:
    """Return after which iteration ranks stop, and why; None = STOP does not say it."""
    why = word % 8
    return (word // 8 - 1, STOP_REASONS[why]) if word >= 8 and why < len(STOP_REASONS) else None


def wish_word(why: str, rank: int | None) -> int:
    """Return what STOP_WANTED has when all ranks are to stop, because of a rank perhaps."""
    return (0 if rank is None else rank + 1) * 8 + 1 + WANTED.index(why)


def wish_of(word: int) -> Wish | None:
    """Return what STOP_WANTED says; None = nothing."""
    why, rank = word % 8, word // 8 - 1
    if not 1 <= why <= len(WANTED):
        return None
    return Wish(WANTED[why - 1], None if rank < 0 else rank)


def section_slot(index: int) -> int:
    """Return the first word of a slot of the table of sections."""
    assert 0 <= index < SECTION_SLOTS
    return SECTIONS + index * SECTION_WORDS


def ring_slot(sequence: int) -> int:
    """Return the first word of the slot of event number ``sequence``."""
    return RING + (sequence % RING_SLOTS) * RING_WORDS
