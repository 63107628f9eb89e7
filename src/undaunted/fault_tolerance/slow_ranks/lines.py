"""At which lines of the program a rank's main thread is, out of looks at it now and then.

What a rank spends more time at than its peers is where it is slow. Lines form a tree of calls: only
those are told at which stacks differ from each other, not what is below or above of all of them.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

from undaunted.attribution.stacks import Frame, is_user_code
from undaunted.base.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import FrameType

_DEEPEST = 64  # frames of a stack that are noted, from the outermost one
_MOST_LOOKS = 256  # then all counts are halved, so that what was long ago counts little
_MOST_PLACES = 4096  # that are kept
_MOST_TOLD = 12
_LONGEST = 80  # of a name
_SAME = 0.9  # of the looks at a line: it is there because of the one line that it calls

_LEAST = 0.02  # of its time, that it spends more in a line
_ERRORS = 2.0  # standard errors of the share
_NEARLY = 0.8  # of the largest excess: the innermost line of these is told

Place = tuple[str, str, int]  # file, function, line


class _Node:
    """A line that was called from the lines above; how often it was seen."""

    __slots__ = ("below", "count")

    def __init__(self) -> None:
        self.count = 0
        self.below: dict[Place, _Node] = {}


class Lines:
    """Counts looks at the stack of one thread."""

    def __init__(self) -> None:
        self.looks = 0
        self._root = _Node()
        self._places = 0

    def note(self, stack: Sequence[Place]) -> None:
        """Count a stack, the outermost frame first."""
        if self.looks >= _MOST_LOOKS:
            self.looks //= 2
            self._places = _halve(self._root)
        self.looks += 1
        node = self._root
        for place in stack[:_DEEPEST]:
            below = node.below.get(place)
            if below is None:
                if self._places >= _MOST_PLACES:
                    return
                self._places += 1
                below = node.below[place] = _Node()
            below.count += 1
            node = below

    def counts(self) -> dict[str, int]:
        """Return how often the thread was in the lines in which it was most; outer ones first."""
        counts: dict[str, int] = {}
        for name, count in _branches(self._root):
            counts[name] = counts.get(name, 0) + count
        least = sorted(counts.values(), reverse=True)[:_MOST_TOLD][-1:]
        often = [name for name, count in counts.items() if [count] >= least]
        return {name: counts[name] for name in often[:_MOST_TOLD]}


class Excess(NamedTuple):
    """A line in which a rank is more often than its peers; shares of its time."""

    line: str
    share: float
    usual: float


def excess(
    looks: int, lines: Mapping[str, int], peers: Iterable[tuple[int, Mapping[str, int]]]
) -> Excess | None:
    """Return the line in which a rank spends more time than others; None = none is clear."""
    others = [(count, told) for count, told in peers if count > 0]
    if looks < 1 or not others:
        return None
    found = []
    for line, count in lines.items():
        share = min(1.0, count / looks)
        usual = statistics.median(told.get(line, 0) / many for many, told in others)
        chance = _ERRORS * math.sqrt(max(share * (1 - share), 1 / looks) / looks)
        if share - usual > max(_LEAST, chance):
            found.append(Excess(one_line(line, _LONGEST), share, usual))
    most = max((each.share - each.usual for each in found), default=0.0)
    inner = [each for each in found if each.share - each.usual >= _NEARLY * most]
    return inner[-1] if inner else None


def stack_of(frame: FrameType | None) -> list[Place]:
    """Return the places of a frame and its callers, the outermost first."""
    places = []
    while frame is not None:
        code = frame.f_code
        places.append((code.co_filename, code.co_name, frame.f_lineno or 0))
        frame = frame.f_back
    return places[::-1]


def _branches(node: _Node) -> Iterator[tuple[str, int]]:
    """Each line below this one, and what is below of it; a line that only calls another is one."""
    for place, below in node.below.items():
        chain = [place]
        end = below
        while end.below and _most(end).count >= _SAME * below.count:
            inner = max(end.below, key=lambda each: end.below[each].count)
            chain.append(inner)
            end = end.below[inner]
        yield _name(chain), below.count
        yield from _branches(end)


def _name(chain: Sequence[Place]) -> str:
    """The outermost line of the user's program in it, and the functions that are called from there.

    Or else the outermost line of all. What is further inside may be called from many places.
    """
    frames = [Frame(file, line, function) for file, function, line in chain]
    mine = [each for each in frames if is_user_code(each)] or frames[:1]
    return one_line(" > ".join([str(mine[0]), *(each.function for each in mine[1:])]), _LONGEST)


def _most(node: _Node) -> _Node:
    return max(node.below.values(), key=lambda each: each.count)


def _halve(node: _Node) -> int:
    """Return how many places are left."""
    for below in node.below.values():
        below.count //= 2
    node.below = {place: below for place, below in node.below.items() if below.count}
    return len(node.below) + sum(_halve(below) for below in node.below.values())
