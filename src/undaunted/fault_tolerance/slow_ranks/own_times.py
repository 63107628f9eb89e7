"""The time that a rank works by itself in a step, out of its Flight Recorder. Pure.

From the call of `undaunted.step`, when all waiting is over, to the moments in which the collectives
of the step are called: until the first one that is waited for, nobody has kept the rank waiting.
All of it is by the rank's own clock.

What a rank does behind the last collective of a step has no beginning in its recorder: gloo does
not note when a collective ends. But no rank leaves it before the last rank has called it, and the
ranks of a node share a clock: `tails_us` counts from there.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undaunted.progress.writer import CHUNK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MOST_CHUNKS = 32  # of one report
_MOMENTS = 4  # of a step that are compared: the first collective, the last, two between


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A few steps of one rank, in a row; they begin at a multiple of `CHUNK`. Times are medians.

    Attributes:
        first: iteration of the first step, divided by `CHUNK`.
        collectives: number in each step.
        step_us: from one step to the next.
        own_us: from the beginning of the step to up to four of its collectives.
        cpu_us: CPU time of the thread that steps, in a step, the mean; 0 = not known.
        begun_us: when its first step began, by the clock of the node.
        called_us: of each step, when its last collective was called, since ``begun_us``.
        over_us: of each step, when the next one began. Both are empty where ranks do not wait in
            the call of a collective, as those of a GPU do not.
    """

    first: int
    collectives: int
    step_us: int
    own_us: tuple[int, ...]
    cpu_us: int = 0
    begun_us: int = 0
    called_us: tuple[int, ...] = ()
    over_us: tuple[int, ...] = ()


class Step(NamedTuple):
    """The begin of a step, its iteration, the CPU time of its thread until then (0 = not known)."""

    begun_ns: int
    iteration: int
    cpu_ns: int = 0


class OwnTimes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer of a rank about its times since it was asked last.

    Attributes:
        chunks: the oldest first.
        gc_us: how long Python's garbage collector has run.
        cost_us: CPU time that this answer has taken.
        looks: how often it was looked where the main thread is.
        lines: how often it was in a line, outer ones first, see `lines`.
    """

    chunks: tuple[Chunk, ...]
    gc_us: int = 0
    cost_us: int = 0
    looks: int = 0
    lines: dict[str, int] = {}


class RankTimes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The same with what its node sees of it, for the leader.

    Attributes:
        wall_us: how long the time is that the rest is about.
        cpu_us: CPU time of the main thread.
        queue_us: how long the main thread could have run, and had no core.
        sections_us: by name, how long the longest sections of the program took.
        looks, lines: as in `OwnTimes`.
    """

    rank: int
    chunks: tuple[Chunk, ...]
    wall_us: int
    gc_us: int = 0
    cpu_us: int = 0
    queue_us: int = 0
    sections_us: dict[str, int] = {}
    looks: int = 0
    lines: dict[str, int] = {}


def chunks(
    steps: Iterable[Step], called_ns: Sequence[int], after_ns: int = 0, *, waited: bool = False
) -> tuple[tuple[Chunk, ...], int]:
    """Return the whole chunks that begin after ``after_ns``, and when the last of them was over.

    Args:
        steps: the oldest first.
        called_ns: when each collective was called, ascending, by the same clock. Steps that began
            before the first of them are left out, as older ones may be missing.
        after_ns: as it was returned the last time.
        waited: ranks wait in the call of a collective.
    """
    begun: dict[int, list[_Done]] = {}
    after_ns = max(after_ns, called_ns[0] if called_ns else 0)
    for step, following in pairwise(steps):
        if following.iteration <= step.iteration:
            begun.clear()  # iterations are counted anew
        elif following.iteration == step.iteration + 1 and step.begun_ns >= after_ns:
            first, behind = (bisect_right(called_ns, at.begun_ns) for at in (step, following))
            own = [called - step.begun_ns for called in called_ns[first:behind]]
            begun.setdefault(step.iteration // CHUNK, []).append(_Done(step, following, own))
    whole = {number: each for number, each in begun.items() if len(each) == CHUNK}
    over_ns = max((each[-1].following.begun_ns for each in whole.values()), default=after_ns)
    made = (_chunk(number, each, waited=waited) for number, each in whole.items())
    found = [chunk for chunk in made if chunk]
    return thinned(found, _MOST_CHUNKS), over_ns


def thinned(chunks: Sequence[Chunk], most: int) -> tuple[Chunk, ...]:
    """Return not more than ``most``: by number every one, every second, every fourth, ...

    So the same ones are left of ranks that have other numbers of them.
    """
    every = 1
    while len(chunks) > most:
        every *= 2
        chunks = [chunk for chunk in chunks if chunk.first % every == 0]
    return tuple(chunks)


def most_chunks(ranks: int) -> int:
    """Return how many of a report go to the leader of so many ranks: it has to compare them all."""
    return max(4, min(_MOST_CHUNKS, 16384 // ranks))


def tails_us(chunks: Sequence[Chunk]) -> list[int]:
    """Return how long these ranks worked behind a step's last collective; [] = not known.

    Args:
        chunks: the same one, of ranks of one node that call the same collectives.
    """
    whole = all(len(each.called_us) == len(each.over_us) == CHUNK for each in chunks)
    if not chunks or not whole:
        return []
    released = [max(each.begun_us + each.called_us[at] for each in chunks) for at in range(CHUNK)]
    behind = [
        statistics.median_low(
            each.begun_us + over - at for over, at in zip(each.over_us, released, strict=True)
        )
        for each in chunks
    ]
    return [us - min(0, *behind) for us in behind]


class _Done(NamedTuple):
    step: Step
    following: Step
    calls: list[int]  # of its collectives, since its beginning


def _chunk(number: int, steps: Sequence[_Done], *, waited: bool) -> Chunk | None:
    """None = the steps are not alike, or hold no collectives."""
    count = len(steps[0].calls)
    if not count or any(len(step.calls) != count for step in steps):
        return None
    places = sorted({(count - 1) * index // (_MOMENTS - 1) for index in range(_MOMENTS)})
    own = (statistics.median_low(step.calls[place] for step in steps) for place in places)
    took = (step.following.begun_ns - step.step.begun_ns for step in steps)
    step_us = statistics.median_low(took) // 1000
    chunk = Chunk(number, count, step_us, tuple(ns // 1000 for ns in own), _cpu_us(steps))
    if not waited:
        return chunk
    begun_ns = steps[0].step.begun_ns
    return msgspec.structs.replace(
        chunk,
        begun_us=begun_ns // 1000,
        called_us=tuple((each.step.begun_ns + each.calls[-1] - begun_ns) // 1000 for each in steps),
        over_us=tuple((each.following.begun_ns - begun_ns) // 1000 for each in steps),
    )


def _cpu_us(steps: Sequence[_Done]) -> int:
    """0 = it was not noted, or another thread steps now."""
    before, after = steps[0].step.cpu_ns, steps[-1].following.cpu_ns
    return max(0, after - before) // 1000 // CHUNK if before and after else 0
