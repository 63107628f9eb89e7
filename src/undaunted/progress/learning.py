"""Limits learned from what pages have counted. Pure; docs/design/learned-timeouts.md says why.

`learn` turns `samples.Knowledge` into limits, `limits_for` says which of them hold for a page now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.text import format_duration
from undaunted.progress.limits import DEFAULT_HEARTBEAT_S, Limits
from undaunted.progress.observer import warmup_of
from undaunted.progress.samples import (
    HEARTBEAT,
    OUT_OF_SECTION,
    QUANTILE,
    SECTION,
    START,
    WARMUP,
    Knowledge,
    Samples,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from undaunted.progress.snapshot import PageSnapshot
    from undaunted.progress.timeouts import Expired

# With q the 99.9 % quantile of n samples, known to 25 %, and m the longest one:
#   n >= MANY: limit = max(FACTOR * q, above * m), above = ABOVE_HEAVY_TAIL if m >= 2 * q, as q then
#              says little, else ABOVE_LONGEST
#   n < MANY:  limit = min(FACTOR * sqrt(MANY / n), ABOVE_FEW) * m; sections alone, from n = SOME on
# and never less than the floor that was given.
FACTOR = 2.4
ABOVE_LONGEST = 1.5
ABOVE_HEAVY_TAIL = 3.0
MANY = 1000
ABOVE_FEW = 5.0
SOME = 30
# Nothing is learned before: something rare, as the first checkpoint, may not have come yet.
OBSERVED_S = 4 * 3600.0
# Starts and warm-up, from STARTS rounds on, with m the longest one:
#   limit = max(min(ABOVE_STARTS * m, ceiling), ABOVE_LONG_STARTS * m, STARTS_FLOOR_S)
STARTS = 3
ABOVE_STARTS = 5.0
ABOVE_LONG_STARTS = 2.0
STARTS_FLOOR_S = 600.0
# A learned limit that has ended a rank may have been wrong: it is multiplied by this.
AFTER_A_KILL = 2.0

_LEARNED = "learned from "
_STARTS = "learned from the starts of rounds: "
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Learned:
    """A learned limit in seconds, and where it comes from, in words."""

    limit_s: float
    source: str


def learn(knowledge: Knowledge, given: Limits) -> dict[str, Learned]:
    """Return the limits that are known by now, keyed as in `Knowledge.samples`.

    Args:
        knowledge: what was seen.
        given: limits as configured. Those that somebody gave are not learned: the heartbeat's if
            its source is not ``default``, and all of sections if any of them has a limit.
    """
    if not given.learn or knowledge.observed_ns < OBSERVED_S * _NS:
        return {}
    found: dict[str, Learned] = {}
    for key, at_least in _kinds_to_learn(knowledge, given):
        limit = _limit(knowledge.of(key), at_least, given.floor_s)
        if limit is not None:
            found[key] = limit
            warmup = _limit_of_start(knowledge.of(WARMUP + key), DEFAULT_HEARTBEAT_S)
            if warmup is not None:
                found[WARMUP + key] = warmup
    if _is_default(given, START) and given.initial_heartbeat_s is not None:
        start = _limit_of_start(knowledge.of(START), given.initial_heartbeat_s)
        if start is not None:
            found[START] = start
    return found


def _kinds_to_learn(knowledge: Knowledge, given: Limits) -> Iterator[tuple[str, int]]:
    """Kinds that nobody has given a limit for, and how many samples each needs."""
    if _is_default(given, HEARTBEAT) and given.heartbeat_s is not None:
        yield HEARTBEAT, MANY
    if given.sections:
        return
    yield from ((SECTION + name, SOME) for name in sorted(knowledge.sections()))
    if _is_default(given, OUT_OF_SECTION):
        yield OUT_OF_SECTION, MANY


def _is_default(given: Limits, key: str) -> bool:
    return given.sources.get(key, "default") == "default"


def _limit(samples: Samples, at_least: int, floor_s: float) -> Learned | None:
    total = samples.total
    if total < at_least or not samples.longest_ns:
        return None
    longest_s = samples.longest_ns / _NS
    if total < MANY:
        limit_s = min(ABOVE_FEW, FACTOR * (MANY / total) ** 0.5) * longest_s
    else:
        quantile_s = samples.quantile_ns(QUANTILE) / _NS
        above = ABOVE_HEAVY_TAIL if longest_s >= 2 * quantile_s else ABOVE_LONGEST
        limit_s = max(FACTOR * quantile_s, above * longest_s)
    limit_s = max(limit_s, floor_s, samples.raised_s)
    return Learned(_round_up(limit_s), _LEARNED + samples.summary())


def _limit_of_start(samples: Samples, ceiling_s: float) -> Learned | None:
    if samples.total < STARTS:
        return None
    longest_s = samples.longest_ns / _NS
    limit_s = max(
        min(ABOVE_STARTS * longest_s, ceiling_s),
        ABOVE_LONG_STARTS * longest_s,
        STARTS_FLOOR_S,
        samples.raised_s,
    )
    return Learned(_round_up(limit_s), _STARTS + samples.summary())


def _round_up(seconds: float) -> float:
    """To what people read easily: a tenth of a second."""
    return -(-seconds * 10 // 1) / 10


def limits_for(page: PageSnapshot, given: Limits, learned: Mapping[str, Learned]) -> Limits:
    """Return what a rank is held to now: learned limits, but longer ones while it warms up.

    The first ``warmup_iterations`` heartbeats, and uses of each section, of a new process compile,
    connect and fill caches; they are no measure, and are not measured by what came before, but by
    how long the same took in other rounds, or by a ceiling.
    """
    if not learned:
        return given
    warmup = warmup_of(page, given.warmup_iterations)
    changes: dict[str, float] = {}
    sections, sources = dict(given.sections), dict(given.sources)
    for key, limit in learned.items():
        if key.startswith(WARMUP):
            continue
        now = limit
        if key != START and _used(page, key) < warmup:
            now = _while_warming_up(limit, learned.get(WARMUP + key))
        sources[key] = now.source
        if key.startswith(SECTION):
            sections[key.removeprefix(SECTION)] = now.limit_s
        else:
            changes[f"{key}_s"] = now.limit_s
    return msgspec.structs.replace(given, sections=sections, sources=sources, **changes)


def _used(page: PageSnapshot, key: str) -> int:
    """How often a process has shown this by now."""
    if key == HEARTBEAT:
        return page.heartbeat_count - 1
    if key == OUT_OF_SECTION:
        return sum(page.outside_histogram)
    section = page.sections.get(key.removeprefix(SECTION))
    return section.count if section is not None else 0


def _while_warming_up(limit: Learned, warmup: Learned | None) -> Learned:
    if warmup is None:
        warmup = Learned(DEFAULT_HEARTBEAT_S, "default while a new process warms up")
    return limit if limit.limit_s > warmup.limit_s else warmup


# --- after a kill ---------------------------------------------------------------------------------


def is_learned(source: str) -> bool:
    """Tell whether a limit with this source was learned."""
    return source.startswith(_LEARNED)


def after_kill(knowledge: Knowledge, expired: Expired) -> Knowledge:
    """Return the knowledge with the limit that ended a rank raised, if it was a learned one.

    A limit that is wrong for a program would otherwise end it at the same place in every round.
    """
    if not is_learned(expired.source):
        return knowledge
    key = _key(expired)
    if expired.source.startswith(_STARTS) and key != START:
        key = WARMUP + key
    return knowledge.raised(key, min(AFTER_A_KILL * expired.limit_s, 1e9))


def _key(expired: Expired) -> str:
    if expired.watch == "section":
        return SECTION + expired.name
    return expired.watch.replace("outside sections", OUT_OF_SECTION).replace(" ", "_")


# --- words ----------------------------------------------------------------------------------------


def distribution(page: PageSnapshot, expired: Expired) -> str:
    """Return in words what a rank did before it passed a limit; "" where nothing was counted."""
    if expired.watch == "section" and expired.name in page.sections:
        section = page.sections[expired.name]
        histogram, longest_ns = section.histogram, section.max_ns
        what = f"times section {expired.name!r} was open"
    elif expired.watch == "heartbeat":
        histogram, longest_ns = page.heartbeat_histogram, page.heartbeat_max_ns
        what = "gaps between heartbeats"
    elif expired.watch == "outside sections":
        histogram, longest_ns = page.outside_histogram, page.outside_max_ns
        what = "times outside all sections"
    else:
        return ""
    samples = Samples({i: count for i, count in enumerate(histogram) if count}, longest_ns)
    if not samples.total:
        return f"{what} in this round: this is the first one"
    parts = [
        f"{name} {format_duration(samples.quantile_ns(q) / _NS)}"
        for name, q in (("half within", 0.5), ("99 %", 0.99), ("99.9 %", QUANTILE))
    ]
    longest = format_duration(longest_ns / _NS)
    return f"{what} in this round: {samples.total}, {', '.join(parts)}, longest {longest}"
