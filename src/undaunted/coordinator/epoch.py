"""The round a rank belongs to, as a number that shared effects can be fenced with."""

from __future__ import annotations

import os

VARIABLE = "UNDAUNTED_ROUND_EPOCH"
# Rounds of one leader; a job has fewer.
_ROUNDS = 1 << 24
# The moment from which a job of one node counts its starts, and how often a second: 2025.
_FIRST_S = 1_735_689_600
_PER_S = 256


def of_start(now_s: float) -> int:
    """Return an epoch for a job of one node that is started now: later than any before, by clocks.

    Nodes that are several agree on one.
    """
    return max(1, int((now_s - _FIRST_S) * _PER_S))


def number(epoch: int, round_number: int) -> int:
    """Number a round that the leader of ``epoch`` has started; above 0, which means no launcher."""
    return epoch * _ROUNDS + round_number + 1


def round_epoch() -> int:
    """Return the epoch of the round this process belongs to; 0 without a launcher.

    It is the same on all ranks of a round and rises with every round of the job, under any leader.
    Write it along with data that ranks share (a checkpoint's commit, a file, a row), and refuse to
    replace data with a higher one. A rank of an old round that was paused or cut off for a while
    then does no harm.
    """
    text = os.environ.get(VARIABLE, "")
    return int(text) if text.isascii() and text.isdigit() else 0
