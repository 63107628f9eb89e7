"""The cost of checkpoints in a run, and how often they should be taken. Pure functions.

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
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undaunted.journal.events import Event, FailureDetected, RankEvent
from undaunted.journal.query import every

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# As `undaunted.checkpointing.announce` writes them.
EVENT = "checkpoint"
_NUMBER = re.compile(r" (step|stall_s|total_s|seconds)=([0-9]+(?:\.[0-9]+)?)")
_NS = 1_000_000_000
_KINDS = ("saved", "loaded", "failed")
# By number of the round and step: the numbers of one save, load or failed save.
_Rows = dict[tuple[int, str], dict[str, float]]
# Rounds of different attempts of a job get different numbers where they are taken together.
_ATTEMPT = 1_000_000_000


class Save(NamedTuple):
    """A save, or a load, of one rank: when it began and was complete, by its node's clock."""

    kind: str
    step: int
    began_ns: int
    stalled_ns: int
    ended_ns: int


class Reports(NamedTuple):
    """The reports of ranks about checkpoints, of the slowest rank each.

    Attributes:
        events: how many events that were.
        rows: numbers of saves, loads and failed saves; there may be a million events of them.
        gaps_s: seconds from one save of a rank to its next in the same round.
        failed: rounds that have failed.
    """

    events: int
    rows: dict[str, _Rows]
    gaps_s: list[float]
    failed: set[int]


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


def reports_of(events: Sequence[Event]) -> Reports:
    """Return what the ranks of one launch have told of checkpoints."""
    reports = [event for event in every(events, RankEvent) if event.name == EVENT]
    rows: dict[str, _Rows] = {kind: {} for kind in _KINDS}
    times: dict[tuple[int, int], list[int]] = {}
    for event in reports:
        kind = event.text.partition(" ")[0]
        if (of_kind := rows.get(kind)) is None:
            continue
        pairs = _pairs(event.text)
        row = of_kind.setdefault((event.round, pairs.pop("step", "")), {})
        for name, value in pairs.items():
            row[name] = max(float(value), row.get(name, 0.0))
        if kind == "saved":
            times.setdefault((event.round, event.rank), []).append(event.at_ns)
    gaps_s = [(b - a) / _NS for one in times.values() for a, b in pairwise(one)]
    failed = {event.round for event in every(events, FailureDetected)}
    return Reports(len(reports), rows, gaps_s, failed)


def joined(reports: Iterable[tuple[int, Reports]]) -> Reports:
    """Return what the ranks of many launches have told, each with the number of its attempt."""
    rows: dict[str, _Rows] = {kind: {} for kind in _KINDS}
    gaps_s: list[float] = []
    failed: set[int] = set()
    count = 0
    for attempt, one in reports:
        count += one.events
        add = attempt * _ATTEMPT
        gaps_s += one.gaps_s
        failed |= {number + add for number in one.failed}
        for kind, of_kind in one.rows.items():
            for (number, step), numbers in of_kind.items():
                row = rows[kind].setdefault((number + add, step), {})
                for name, value in numbers.items():
                    row[name] = max(value, row.get(name, 0.0))
    return Reports(count, rows, gaps_s, failed)


def checkpoints(reports: Reports, duration_ns: int) -> Checkpoints | None:
    """Return what checkpoints have cost; None if no rank has told of any.

    Args:
        reports: by the ranks.
        duration_ns: how long training took.
    """
    if not reports.events:
        return None
    saves, loads = reports.rows["saved"].values(), reports.rows["loaded"].values()
    between_s = duration_ns / _NS / len(reports.failed) if reports.failed else None
    stall_s = _median(saves, "stall_s")
    total_s = _median(saves, "total_s")
    load_s = _median(loads, "seconds")
    interval_s = median(reports.gaps_s) if reports.gaps_s else None
    advice_s = advice(stall_s, between_s, total_s)
    return Checkpoints(
        saved=len(saves),
        failed=len(reports.rows["failed"]),
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
    """Return the step and the durations that an event of a checkpoint names, by name."""
    return {name: float(value) for name, value in _pairs(text).items()}


def save_of(event: RankEvent) -> Save | None:
    """Return the save or load that an event of a rank reports; None = it reports another thing."""
    kind = event.text.partition(" ")[0]
    if event.name != EVENT or kind not in _KINDS:
        return None
    numbers = numbers_of(event.text)
    step = numbers.get("step", -1)
    if kind == "failed":
        numbers = {}  # what follows are a user's words
    took_ns = round(numbers.get("total_s", numbers.get("seconds", 0.0)) * _NS)
    began_ns = max(0, event.at_ns - took_ns)
    stall_ns = round(numbers.get("stall_s", took_ns / _NS) * _NS)
    stalled_ns = min(began_ns + stall_ns, event.at_ns)
    return Save(kind, int(step), began_ns, stalled_ns, event.at_ns)


def _pairs(text: str) -> dict[str, str]:
    """Return numbers by name; the first of a name, as what follows may be the text of an error."""
    return dict(reversed(_NUMBER.findall(text)))


def _median(rows: Iterable[dict[str, float]], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return median(values) if values else None
