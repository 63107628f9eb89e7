"""Histograms of durations with logarithmic buckets: four per octave, from 1 us to 2.4 h.

Bucket 0 holds everything below 1.024 us, the last one everything from 2**43 ns up. A bucket in
between is a quarter of an octave, so a bound is at most 25 % away from any value in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST_BIT = 10  # durations from 2**10 ns up have buckets of their own ...
LAST_BIT = 43  # ... below 2**43 ns
BUCKETS = 4 * (LAST_BIT - FIRST_BIT) + 2
UNBOUNDED_NS = 2**64 - 1


def bucket(duration_ns: int) -> int:
    """Return the index of the bucket for a duration; negative ones count as zero."""
    bits = duration_ns.bit_length()
    if bits <= FIRST_BIT or duration_ns < 0:
        return 0
    if bits > LAST_BIT:
        return BUCKETS - 1
    return ((bits - FIRST_BIT - 1) << 2) + ((duration_ns >> (bits - 3)) & 3) + 1


def count(words: memoryview, histogram: int, longest: int, duration_ns: int) -> None:
    """Count a duration in a page: in a histogram, and in the word of the longest one."""
    try:
        if duration_ns > words[longest]:  # noqa: PLR1730 - max() costs more
            words[longest] = duration_ns
        if 1 << 10 <= duration_ns < 1 << 43:  # `bucket`, written out: a call would cost a third
            bits = duration_ns.bit_length()
            words[histogram - 47 + (bits << 2) + (duration_ns >> (bits - 3))] += 1
        else:
            words[histogram + bucket(duration_ns)] += 1
    except ValueError:
        pass  # somebody wrote garbage into the page: a count is at its largest value


def bounds(index: int) -> tuple[int, int]:
    """Return the limits of a bucket in nanoseconds: ``low <= duration < high``."""
    assert 0 <= index < BUCKETS, f"bucket {index} is not in 0..{BUCKETS - 1}"
    if index == 0:
        return 0, 1 << FIRST_BIT
    if index == BUCKETS - 1:
        return 1 << LAST_BIT, UNBOUNDED_NS
    octave, quarter = divmod(index - 1, 4)
    width = 1 << (octave + FIRST_BIT - 2)
    low = (4 + quarter) * width
    return low, low + width


def quantile(histogram: Sequence[int], q: float) -> int | None:
    """Return an upper bound of the ``q``-quantile in nanoseconds.

    Args:
        histogram: counts per bucket.
        q: from 0 (the smallest duration) to 1 (the largest).

    Returns:
        None if nothing was counted; ``UNBOUNDED_NS`` if it lies in the last bucket.
    """
    if not 0 <= q <= 1:
        raise ValueError(f"quantile {q} is not between 0 and 1")
    total = sum(histogram)
    seen = 0
    for index, count in enumerate(histogram):
        seen += count
        if count and seen >= q * total:
            return bounds(index)[1]
    return None


def merge(histograms: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Add histograms; an empty one (nothing was recorded yet) adds nothing."""
    filled = [counts for counts in histograms if counts]
    assert all(len(counts) == BUCKETS for counts in filled), "histogram of another layout"
    return tuple(map(sum, zip(*filled, strict=True))) if filled else (0,) * BUCKETS
