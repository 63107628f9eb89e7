"""Limits learned from what the pages have counted. Pure; docs/design/learned-timeouts.md says why.

`Observer` collects what one round shows. `Knowledge` is what all rounds with as many ranks have
shown; it is kept on disk. `learn` turns it into limits, `limits_for` says which of them hold for a
page at the moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import msgspec

from undaunted.base.text import format_duration
from undaunted.progress.histogram import BUCKETS, bounds, quantile
from undaunted.progress.limits import DEFAULT_HEARTBEAT_S, Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from undaunted.progress.snapshot import PageSnapshot
    from undaunted.progress.timeouts import Expired

QUANTILE = 0.999
FACTOR = 2.4  # times the quantile, which is known to 25 %: at most three times the true one
ABOVE_LONGEST = 1.5  # times the longest ever seen, where that is more ...
ABOVE_HEAVY_TAIL = 3.0  # ... and if it is twice the quantile, which then says little
FLOOR_S = 60.0  # about what an unneeded restart costs
MANY = 1000  # samples that make the quantile meaningful
SOME = 30  # samples from which on the longest means something ...
FACTOR_OF_SOME = 5.0  # ... when taken this often
OBSERVED_S = 4 * 3600.0  # until then something rare, as the first checkpoint, may not have come yet
AFTER_A_KILL = 2.0  # times the limit that ended a rank: should it have been wrong, not again

HEARTBEAT = "heartbeat"
_SOURCE = "learned from "
_NS = 1_000_000_000

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Bucket = Annotated[int, msgspec.Meta(ge=0, lt=BUCKETS)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
PositiveSeconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Samples(msgspec.Struct, frozen=True, omit_defaults=True):
    """Durations of one kind: gaps between heartbeats, or times a section was open.

    Attributes:
        counts: how many, by bucket of `histogram`.
        longest_ns: the longest one.
        raised_s: the limit is not less than this; 0 = no rank was ended by a learned limit.
    """

    counts: dict[Bucket, Count] = {}
    longest_ns: Count = 0
    raised_s: Seconds = 0.0

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.counts.values())

    def quantile_ns(self, q: float) -> int:
        """Upper bound of a quantile, never above the longest; 0 if there is nothing."""
        found = quantile([self.counts.get(index, 0) for index in range(BUCKETS)], q)
        return min(found or 0, self.longest_ns)


class Knowledge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a program has shown with a number of ranks.

    Attributes:
        world_size: the number of ranks.
        observed_ns: how long it was watched after its warm-up.
        heartbeat: gaps between heartbeats.
        sections: times each section was open; their names are part of what identifies a program.
    """

    world_size: int
    observed_ns: Count = 0
    heartbeat: Samples = Samples()
    sections: dict[str, Samples] = {}

    def fits(self, names: Iterable[str]) -> bool:
        """Tell whether a program with these sections may be the one this is about."""
        return self.sections.keys() >= set(names)


@dataclass(frozen=True, slots=True)
class Learned:
    """A learned limit in seconds, and where it comes from, in words."""

    limit_s: float
    source: str


# --- collecting -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Tally:
    """One kind of sample of one rank. What came before ``baseline`` was warm-up."""

    baseline: Sequence[int]
    counts: list[int] = field(default_factory=list)
    longest_ns: int = 0

    def update(self, histogram: Sequence[int], longest_ns: int) -> None:
        counts = [now - before for now, before in zip(histogram, self.baseline, strict=True)]
        if min(counts) < 0:  # another process has the page: begin anew
            self.baseline, counts = histogram, [0] * BUCKETS
        top = max((index for index, count in enumerate(counts) if count), default=None)
        self.counts = counts
        # The page's longest may have been in the warm-up; the bucket tells.
        self.longest_ns = 0 if top is None else min(bounds(top)[1], longest_ns)


class Observer:
    """Collects what the pages of one round show. The first few samples of a rank are left out."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._tallies: dict[tuple[int, str], _Tally] = {}
        self._first_ns: dict[int, int] = {}
        self._latest_ns: dict[int, int] = {}
        self._names: set[str] = set()

    def look(self, index: int, page: PageSnapshot, warmup: int) -> None:
        """Take in what the page of local rank ``index`` says now."""
        if page.problem:
            return
        warmup = _warmup(page, warmup)
        if page.heartbeat_count > warmup and page.heartbeat_histogram:
            self._update(index, HEARTBEAT, page.heartbeat_histogram, page.heartbeat_max_ns)
        for name, section in page.sections.items():
            self._names.add(name)
            if section.count >= warmup and section.histogram:
                self._update(index, f"section:{name}", section.histogram, section.max_ns)
        latest_ns = _latest_ns(page)
        if latest_ns is not None and any(rank == index for rank, _ in self._tallies):
            self._first_ns.setdefault(index, latest_ns)
            self._latest_ns[index] = max(latest_ns, self._latest_ns.get(index, 0))

    def seen(self) -> Knowledge:
        """What the round has shown so far: in each bucket the most that any rank has counted.

        So what a single rank does, such as saving a checkpoint, is not diluted by the others.
        """
        sections = {name: self._samples(f"section:{name}") for name in sorted(self._names)}
        spans = [self._latest_ns[index] - first for index, first in self._first_ns.items()]
        return Knowledge(
            world_size=self._world_size,
            observed_ns=_bounded(max(spans, default=0)),
            heartbeat=self._samples(HEARTBEAT),
            sections=sections,
        )

    def _update(self, index: int, key: str, histogram: Sequence[int], longest_ns: int) -> None:
        tally = self._tallies.setdefault((index, key), _Tally(histogram))
        tally.update(histogram, longest_ns)

    def _samples(self, key: str) -> Samples:
        tallies = [tally for (_, of), tally in self._tallies.items() if of == key]
        most = map(max, zip(*(tally.counts for tally in tallies), strict=True))
        counts = {bucket: _bounded(count) for bucket, count in enumerate(most) if count}
        longest_ns = max((tally.longest_ns for tally in tallies), default=0)
        return Samples(counts, _bounded(longest_ns))


def merge(one: Knowledge, other: Knowledge) -> Knowledge:
    """Put together what was learned at different times with the same number of ranks."""
    names = sorted(one.sections.keys() | other.sections.keys())
    nothing = Samples()
    return Knowledge(
        world_size=one.world_size,
        observed_ns=_bounded(one.observed_ns + other.observed_ns),
        heartbeat=_add(one.heartbeat, other.heartbeat),
        sections={
            name: _add(one.sections.get(name, nothing), other.sections.get(name, nothing))
            for name in names
        },
    )


def _add(one: Samples, other: Samples) -> Samples:
    counts = {
        bucket: _bounded(one.counts.get(bucket, 0) + other.counts.get(bucket, 0))
        for bucket in sorted(one.counts.keys() | other.counts.keys())
    }
    longest_ns = max(one.longest_ns, other.longest_ns)
    return Samples(counts, longest_ns, max(one.raised_s, other.raised_s))


def _bounded(count: int) -> int:
    return min(count, 2**62)


# --- limits ---------------------------------------------------------------------------------------


def learn(knowledge: Knowledge, given: Limits) -> dict[str, Learned]:
    """Return the limits that are known by now, keyed as in ``Limits.sources``.

    Args:
        knowledge: what was seen.
        given: limits as configured. Those that somebody gave are not learned: the heartbeat's if
            its source is not ``default``, and all sections if any section has a limit.
    """
    if knowledge.observed_ns < OBSERVED_S * _NS:
        return {}
    found: dict[str, Learned | None] = {}
    if given.sources.get(HEARTBEAT, "default") == "default" and given.heartbeat_s is not None:
        found[HEARTBEAT] = _limit(knowledge.heartbeat, at_least=MANY)
    if not given.sections:
        for name, samples in knowledge.sections.items():
            found[f"section:{name}"] = _limit(samples, at_least=SOME)
    return {key: limit for key, limit in found.items() if limit is not None}


def _limit(samples: Samples, *, at_least: int) -> Learned | None:
    total = samples.total
    if total < at_least or not samples.longest_ns:
        return None
    quantile_s, longest_s = samples.quantile_ns(QUANTILE) / _NS, samples.longest_ns / _NS
    if total >= MANY:
        above = ABOVE_HEAVY_TAIL if longest_s >= 2 * quantile_s else ABOVE_LONGEST
        limit_s = max(FACTOR * quantile_s, above * longest_s)
    else:
        limit_s = FACTOR_OF_SOME * longest_s
    limit_s = max(limit_s, FLOOR_S, samples.raised_s)
    return Learned(_round_up(limit_s), _SOURCE + summary(samples))


def _round_up(seconds: float) -> float:
    """To what people read easily: a tenth of a second."""
    return -(-seconds * 10 // 1) / 10


def limits_for(page: PageSnapshot, given: Limits, learned: Mapping[str, Learned]) -> Limits:
    """Return what a rank is held to now: learned limits, but ceilings while it warms up.

    The first ``warmup_iterations`` heartbeats, and uses of each section, of a new process compile,
    connect and fill caches; they are no measure, and are not measured by what came before.
    """
    if not learned:
        return given
    warmup = _warmup(page, given.warmup_iterations)
    heartbeat_s, sections, sources = given.heartbeat_s, dict(given.sections), dict(given.sources)
    for key, limit in learned.items():
        name = key.removeprefix("section:")
        if key == HEARTBEAT:
            used = page.heartbeat_count - 1
        else:
            used = page.sections[name].count if name in page.sections else 0
        warm = used >= warmup
        limit_s = limit.limit_s if warm else max(limit.limit_s, DEFAULT_HEARTBEAT_S)
        sources[key] = limit.source if warm else "warm-up"
        if key == HEARTBEAT:
            heartbeat_s = limit_s
        else:
            sections[name] = limit_s
    return msgspec.structs.replace(
        given, heartbeat_s=heartbeat_s, sections=sections, sources=sources
    )


def is_learned(source: str) -> bool:
    """Tell whether a limit with this source was learned."""
    return source.startswith(_SOURCE)


def after_kill(knowledge: Knowledge, expired: Expired) -> Knowledge:
    """Return the knowledge with the limit that ended a rank raised, if it was a learned one.

    A limit that is wrong for a program would otherwise end it at the same place in every round.
    """
    if not is_learned(expired.source):
        return knowledge
    raised_s = min(AFTER_A_KILL * expired.limit_s, 1e9)
    if expired.watch == "heartbeat":
        heartbeat = msgspec.structs.replace(knowledge.heartbeat, raised_s=raised_s)
        return msgspec.structs.replace(knowledge, heartbeat=heartbeat)
    samples = knowledge.sections.get(expired.name, Samples())
    samples = msgspec.structs.replace(samples, raised_s=raised_s)
    sections = {**knowledge.sections, expired.name: samples}
    return msgspec.structs.replace(knowledge, sections=sections)


# --- words ----------------------------------------------------------------------------------------


def summary(samples: Samples) -> str:
    """Return count, quantile and longest in words."""
    quantile_s = format_duration(samples.quantile_ns(QUANTILE) / _NS)
    longest = format_duration(samples.longest_ns / _NS)
    text = f"{samples.total} samples, q99.9 = {quantile_s}, longest {longest}"
    if samples.raised_s:
        text += ", raised since it ended a rank"
    return text


def distribution(page: PageSnapshot, expired: Expired) -> str:
    """Return in words what a rank did before it passed a limit; "" where nothing was counted."""
    if expired.watch == "section" and expired.name in page.sections:
        section = page.sections[expired.name]
        histogram, longest_ns = section.histogram, section.max_ns
        what = f"times section {expired.name!r} was open"
    elif expired.watch == "heartbeat":
        histogram, longest_ns = page.heartbeat_histogram, page.heartbeat_max_ns
        what = "gaps between heartbeats"
    else:
        return ""
    samples = Samples({i: count for i, count in enumerate(histogram) if count}, longest_ns)
    if not samples.total:
        return ""
    parts = [
        f"{name} {format_duration(samples.quantile_ns(q) / _NS)}"
        for name, q in (("half within", 0.5), ("99 %", 0.99), ("99.9 %", QUANTILE))
    ]
    longest = format_duration(longest_ns / _NS)
    return f"{what} in this round: {samples.total}, {', '.join(parts)}, longest {longest}"


# --- leaves ---------------------------------------------------------------------------------------


def _warmup(page: PageSnapshot, configured: int) -> int:
    return configured if page.warmup_iterations is None else page.warmup_iterations


def _latest_ns(page: PageSnapshot) -> int | None:
    """When the rank last did something that is watched."""
    times = [page.heartbeat_ns, page.out_of_section_since_ns]
    times += [section.open_since_ns for section in page.sections.values()]
    return max((time for time in times if time is not None), default=None)
