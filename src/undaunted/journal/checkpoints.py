"""What checkpoints have cost in a run, and how often they should be taken. Pure functions.

The interval is the one of Young (1974), the square root of 2 C M, with the higher-order terms of
Daly (2006): C is how long a checkpoint stops training, M the mean time between failures. As
training goes on while a checkpoint is written, only the stop counts as C; but the next checkpoint
cannot be taken before this one is written, so that no interval is shorter than that.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from undaunted.journal.events import Event, FailureDetected, RankEvent
from undaunted.journal.query import every

if TYPE_CHECKING:
    from collections.abc import Sequence

# As `undaunted.checkpointing.announce` writes them.
EVENT = "checkpoint"
_NUMBER = re.compile(r"(\w+)=([0-9]+(?:\.[0-9]+)?)")
_NS = 1_000_000_000


class Checkpoints(msgspec.Struct, kw_only=True, frozen=True):
    """Saves and loads of one launch on one node. Durations are in seconds.

    Attributes:
        saved: checkpoints of which a rank of this node has written its part.
        failed: steps at which a save failed.
        loaded: how often one was loaded, by all ranks of a round together.
        stall_s: how long training was stopped for one, the median of the slowest ranks; None when
            none was saved.
        total_s: from the call until it was committed, likewise.
        load_s: of one load, likewise.
        interval_s: from one to the next, the median; None with less than two in a row.
        between_failures_s: the time training ran, by the number of failures; None without one.
        advice_s: the interval that costs the least; None when too little is known.
        advised_cost: part of the time, 0 to 1, that stops, lost steps and loads cost then.
        present_cost: the same with the present interval.
    """

    saved: int = 0
    failed: int = 0
    loaded: int = 0
    stall_s: float | None = None
    total_s: float | None = None
    load_s: float | None = None
    interval_s: float | None = None
    between_failures_s: float | None = None
    advice_s: float | None = None
    advised_cost: float | None = None
    present_cost: float | None = None


def checkpoints(events: Sequence[Event], duration_ns: int) -> Checkpoints | None:
    """Return what the ranks have told of checkpoints; None if that is nothing.

    Args:
        events: of one launch.
        duration_ns: how long it took.
    """
    told = [event for event in every(events, RankEvent) if event.name == EVENT]
    if not told:
        return None
    saves = _by_step(told, "saved")
    loads = _by_step(told, "loaded")
    failures = len({event.round for event in every(events, FailureDetected)})
    between_s = duration_ns / _NS / failures if failures else None
    stall_s = _median(saves, "stall_s")
    total_s = _median(saves, "total_s")
    load_s = _median(loads, "seconds")
    interval_s = _interval(told)
    advice_s = advice(stall_s, between_s, total_s)
    return Checkpoints(
        saved=len(saves),
        failed=len(_by_step(told, "failed")),
        loaded=len(loads),
        stall_s=stall_s,
        total_s=total_s,
        load_s=load_s,
        interval_s=interval_s,
        between_failures_s=between_s,
        advice_s=advice_s,
        advised_cost=cost(advice_s, stall_s, load_s, between_s),
        present_cost=cost(interval_s, stall_s, load_s, between_s),
    )


def advice(stall_s: float | None, between_s: float | None, total_s: float | None) -> float | None:
    """Return the interval between checkpoints that costs the least, in seconds.

    Args:
        stall_s: for how long one stops training.
        between_s: mean time between failures.
        total_s: until one is committed; no interval is shorter.

    Returns:
        None when too little is known. The mean time between failures when one checkpoint costs
        more than twice that.
    """
    if stall_s is None or between_s is None or stall_s <= 0:
        return None
    if stall_s >= 2 * between_s:
        return max(between_s, total_s or 0.0)
    part = stall_s / (2 * between_s)
    young = math.sqrt(2 * stall_s * between_s)
    return max(young * (1 + math.sqrt(part) / 3 + part / 9) - stall_s, total_s or 0.0)


def cost(
    interval_s: float | None,
    stall_s: float | None,
    load_s: float | None,
    between_s: float | None,
) -> float | None:
    """Return the part of the time, 0 to 1, that checkpoints and what failures undo cost.

    Each interval is stopped once; each failure costs a load and, in the mean, half an interval.
    """
    if not interval_s or stall_s is None or between_s is None:
        return None
    return min(1.0, stall_s / interval_s + (interval_s / 2 + (load_s or 0.0)) / between_s)


def numbers_of(text: str) -> dict[str, float]:
    """Return the numbers that an event of a checkpoint names, by name."""
    return {name: float(value) for name, value in _NUMBER.findall(text)}


def _by_step(told: Sequence[RankEvent], kind: str) -> list[dict[str, float]]:
    """Return the numbers of each save (or load), of its slowest rank."""
    found: dict[tuple[int | None, float], dict[str, float]] = {}
    for event in told:
        if event.text.split(" ", 1)[0] == kind:
            numbers = numbers_of(event.text)
            of_step = found.setdefault((event.round, numbers.get("step", -1.0)), {})
            for name, value in numbers.items():
                of_step[name] = max(value, of_step.get(name, 0.0))
    return list(found.values())


def _median(rows: Sequence[dict[str, float]], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return median(values) if values else None


def _interval(told: Sequence[RankEvent]) -> float | None:
    """Return the seconds between the saves of a round, by the rank that has told most."""
    times: dict[tuple[int | None, int], list[int]] = {}
    for event in told:
        if event.text.startswith("saved "):
            times.setdefault((event.round, event.rank), []).append(event.at_ns)
    gaps = [(b - a) / _NS for one in times.values() for a, b in pairwise(one)]
    return median(gaps) if gaps else None
