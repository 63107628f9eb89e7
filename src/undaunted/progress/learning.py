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
    SECTION,
    Knowledge,
    Samples,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from undaunted.progress.snapshot import PageSnapshot
    from undaunted.progress.timeouts import Expired

# The limit is FACTOR x the longest of n samples from n = MANY on, FACTOR_OF_FEW x below: sections
# alone, from n = SOME on. And never less than the floor that was given.
MANY = 1000
FACTOR = 2.0
SOME = 30
FACTOR_OF_FEW = 5.0
# Nothing is learned before: something rare, as the first checkpoint, may not have come yet.
OBSERVED_S = 4 * 3600.0
# A learned limit that has ended a rank may have been wrong: it is multiplied by this.
AFTER_A_KILL = 2.0

_LEARNED = "learned from "
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Learned:
    """A learned limit in seconds, and where it comes from, in words."""

    limit_s: float
    source: str


_WARMING_UP = Learned(DEFAULT_HEARTBEAT_S, "default while a new process warms up")


def learn(knowledge: Knowledge, given: Limits) -> dict[str, Learned]:
    """Return the limits that are known by now, keyed as in `Knowledge.samples`.

    Args:
        knowledge: what was seen.
        given: limits as configured. Those that somebody gave are not learned: the heartbeat's if
            its source is not ``default``, and all of sections if any of them has a limit.
    """
    if not given.learn or knowledge.observed_ns < OBSERVED_S * _NS:
        return {}
    found = {
        key: _limit(knowledge.of(key), at_least, given.floor_s)
        for key, at_least in _kinds_to_learn(knowledge, given)
    }
    return {key: limit for key, limit in found.items() if limit is not None}


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
    if samples.count < at_least or not samples.longest_ns:
        return None
    factor = FACTOR if samples.count >= MANY else FACTOR_OF_FEW
    limit_s = max(factor * samples.longest_ns / _NS, floor_s, samples.raised_s)
    return Learned(_round_up(limit_s), _LEARNED + samples.summary())


def _round_up(seconds: float) -> float:
    """To what people read easily: a tenth of a second."""
    return -(-seconds * 10 // 1) / 10


def limits_for(page: PageSnapshot, given: Limits, learned: Mapping[str, Learned]) -> Limits:
    """Return what a rank is held to now: learned limits, but longer ones while it warms up.

    The first ``warmup_iterations`` heartbeats, and uses of each section, of a new process compile,
    connect and fill caches; they are no measure, and are not measured by what came before.
    """
    if not learned:
        return given
    warmup = warmup_of(page, given.warmup_iterations)
    changes: dict[str, float] = {}
    sections, sources = dict(given.sections), dict(given.sources)
    for key, limit in learned.items():
        warming_up = _used(page, key) < warmup and limit.limit_s < DEFAULT_HEARTBEAT_S
        now = _WARMING_UP if warming_up else limit
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
        return page.outside_count
    section = page.sections.get(key.removeprefix(SECTION))
    return section.count if section is not None else 0


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
    return knowledge.raised(_key(expired), min(AFTER_A_KILL * expired.limit_s, 1e9))


def _key(expired: Expired) -> str:
    if expired.watch == "section":
        return SECTION + expired.name
    return expired.watch.replace("outside sections", OUT_OF_SECTION).replace(" ", "_")


# --- words ----------------------------------------------------------------------------------------


def distribution(page: PageSnapshot, expired: Expired) -> str:
    """Return in words what a rank did before it passed a limit; "" where nothing was counted."""
    if expired.watch == "section" and expired.name in page.sections:
        section = page.sections[expired.name]
        count, longest_ns = section.count, section.max_ns
        what = f"times section {expired.name!r} was open"
    elif expired.watch == "heartbeat":
        count, longest_ns = page.heartbeat_count - 1, page.heartbeat_max_ns
        what = "gaps between heartbeats"
    elif expired.watch == "outside sections":
        count, longest_ns = page.outside_count, page.outside_max_ns
        what = "times outside all sections"
    else:
        return ""
    if count < 1:
        return f"{what} in this round: this is the first one"
    return f"{what} in this round: {count}, longest {format_duration(longest_ns / _NS)}"
