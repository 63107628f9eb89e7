"""The bounds of times in disturbed runs, out of those of the undisturbed one. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.progress.samples import HEARTBEAT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from undaunted.progress.samples import Knowledge

REFERENCE_S = 3600.0  # the undisturbed run may take so long if nobody says otherwise
_NS = 1_000_000_000
_HANG_FACTOR = 10
_HANG_FLOOR_S = 5.0
_START_FLOOR_S = 60.0
_GRACE_FLOOR_S = 10.0
_RUN_FACTOR = 3
_RUN_MARGIN_S = 60.0
_FAULT_MARGIN_S = 10.0
_DISK_FACTOR = 3
_DISK_MARGIN_BYTES = 16 << 20
_FULL_FLOOR_S = 3.0
_RESTARTS_MARGIN = 3
_SLOW_MOST_S = 5.0


def longest_silence(entries: Iterable[Knowledge]) -> float:
    """Return the longest time between two signs of life of a rank, seconds; 0 = not known."""
    return max((entry.of(HEARTBEAT).ever_ns for entry in entries), default=0) / _NS


def hang_limit(silence_s: float) -> float:
    """Return after how many seconds of silence a rank hangs: ten times what was normal."""
    return max(_HANG_FLOOR_S, _round(_HANG_FACTOR * silence_s))


def start_limit(reference_s: float) -> float:
    """Return how long a rank may take to its first step."""
    return max(_START_FLOOR_S, _round(reference_s))


def grace(silence_s: float) -> float:
    """Return how long ranks may take to save and end when the launcher is to stop."""
    return max(_GRACE_FLOOR_S, hang_limit(silence_s))


def run_deadline(reference_s: float, faults: int, limit_s: float, grace_s: float) -> float:
    """Return how long a run with so many faults may take: each costs at most another run."""
    each = reference_s + limit_s + grace_s + _FAULT_MARGIN_S
    return _RUN_MARGIN_S + _RUN_FACTOR * reference_s + faults * each


def restarts(faults: int) -> int:
    """Return how many restarts a run with so many faults may need; some need two."""
    return 2 * faults + _RESTARTS_MARGIN


def disk_full_seconds(reference_s: float) -> float:
    """Return how long a full disk stays full: long enough for a checkpoint to fail."""
    return max(_FULL_FLOOR_S, reference_s / 3)


def slow_seconds(limit_s: float) -> float:
    """Return how long the network is slow: no rank that waits for it may be hung."""
    return min(_SLOW_MOST_S, limit_s / 2)


def small_disk_bytes(left_bytes: int) -> int:
    """Return the size of a small disk for a program that leaves so much behind."""
    return _DISK_FACTOR * left_bytes + _DISK_MARGIN_BYTES


def _round(seconds: float) -> float:
    return float(-(-seconds // 1))
