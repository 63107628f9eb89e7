"""The budget of restarts: how often lately, and does the job come any further? Pure.

**Intensity**: restarts that are long ago do not count. There is no clock here: a timer forgets each
restart. A leader that takes over begins to count anew; what is used of the whole budget it knows.

**Pauses** before a restart grow, from 1 s to 60 s: those of the intensity from its second restart
on, and those after the same failure without progress from its fourth time on.

**Progress**: the iteration a round reached is compared with the highest one any round before it
reached, so that a job that falls back and recovers what it lost has not advanced. What is not known
counts for nothing: a file that cannot be read neither adds to the count nor resets it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.base.text import format_duration
from undaunted.coordinator.policy.messages import Iterations, SetTimer

if TYPE_CHECKING:
    from collections.abc import Iterable

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
# So often the same failure is followed by a restart at once.
FREE_REPEATS = 3
# Timers of this name and a number forget the restart after the round of that number.
FORGET = "forget"


@dataclass(slots=True)
class Intensity:
    """Counts restarts that are not long ago.

    Attributes:
        limit: so many restarts within so many seconds; None = as many as there are.
        recent: rounds after which the job was restarted, as long as they count.
    """

    limit: tuple[int, float] | None = None
    recent: set[int] = field(default_factory=set)

    @property
    def spent(self) -> str:
        """Return why the job may not be restarted now, "" = it may."""
        if self.limit is None or len(self.recent) < self.limit[0]:
            return ""
        most, within = self.limit[0], format_duration(self.limit[1])
        return f"{most} of {most} restarts within {within} are used (--restart-intensity)"

    def count(self, number: int) -> list[SetTimer]:
        """Count the restart after round ``number``, until the timer has run out."""
        if self.limit is None:
            return []
        self.recent.add(number)
        return [SetTimer(f"{FORGET} {number}", number, self.limit[1])]

    def forget(self, number: int) -> None:
        """The restart after round ``number`` is long ago, or does not take place."""
        self.recent.discard(number)

    @property
    def pause_s(self) -> float:
        """How long to wait before the newest restart: the first one comes at once."""
        return growing_pause_s(len(self.recent) - 1)


def growing_pause_s(number: int) -> float:
    """Return the pause of this number, 0 before the first one, which has number 1."""
    if number < 1:
        return 0.0
    return float(min(FIRST_PAUSE_S * 2.0 ** min(number - 1, 10), LONGEST_PAUSE_S))


# --- progress -------------------------------------------------------------------------------------

# How many rounds the explanation names one by one.
_ROUNDS_NAMED = 5


@dataclass(slots=True)
class ProgressTracker:
    """Counts rounds without progress.

    Attributes:
        max_rounds: so many in a row are too many; 0 or less = never.
        min_iterations: a round that advances by less has made no progress.
        max_restarts: the budget; no line comes where it is used up first anyway.
    """

    max_rounds: int = 3
    min_iterations: int = 1
    max_restarts: int = 0
    _reached: int | None = None
    _said: bool = False
    _stalled: list[str] = field(default_factory=list)  # one text per round without progress
    _from: int = 0  # what had been reached before the first of these
    _lowest: int | None = None  # the lowest iteration that one of these began with

    def round_over(self, number: int, nodes: Iterable[Iterations]) -> str:
        """Take in what every node says of a round that failed.

        Returns:
            Why the job should not be restarted again, "" if it may be.
        """
        seen = together(nodes)
        if self._reached is None:
            self._reached = seen.first
        if self._reached is None and seen.last is not None:
            self._reached = seen.last  # known for the first time, so the job has come that far
        elif self._reached is not None and not seen.problem:
            self._compare(number, seen, self._reached)
        return self._explanation() if 0 < self.max_rounds <= len(self._stalled) else ""

    @property
    def known(self) -> tuple[int | None, tuple[str, ...]]:
        """The highest iteration, and the rounds without progress: they must not be forgotten."""
        return self._reached, tuple(self._stalled)

    def restore(self, reached: int | None, stalled: Iterable[str]) -> None:
        """Go on from what `known` was. This tracker has not seen what ranks did before."""
        self._reached, self._stalled, self._said = reached, list(stalled), True
        self._from = reached or 0

    def to_say(self, nodes: Iterable[Iterations]) -> str:
        """Return a line for users about the tracking itself, once in a job; "" = nothing."""
        problem = together(nodes).problem
        matters = 0 < self.max_rounds <= self.max_restarts
        if self._said or not matters or (self._reached is not None and not problem):
            return ""
        self._said = True
        why = problem or "no rank has called undaunted.step so far"
        return (
            f"restarts are not checked for progress (--ft-max-no-progress-cycles "
            f"{self.max_rounds}): {why}"
        )

    def _compare(self, number: int, seen: Iterations, reached: int) -> None:
        last = seen.last
        if last is not None and last - reached >= self.min_iterations:
            self._stalled.clear()
        elif self.max_rounds > 0:
            self._stall(number, seen, reached)
        self._reached = reached if last is None else max(reached, last)

    def _stall(self, number: int, seen: Iterations, reached: int) -> None:
        if not self._stalled:
            self._from, self._lowest = reached, seen.first
        elif seen.first is not None and seen.first < (self._lowest or 0):
            # It began with an older checkpoint than those before, which may have been bad.
            self._stalled.clear()
            self._lowest = seen.first
        how = "began no iteration" if seen.last is None else f"reached {seen.last}"
        self._stalled.append(f"round {number} {how}")

    def _explanation(self) -> str:
        count = len(self._stalled)
        rounds = "1 round" if count == 1 else f"{count} rounds in a row"
        named = self._stalled[-_ROUNDS_NAMED:]
        before = "..., " if count > len(named) else ""
        return (
            f"no progress in {rounds}: the job was at iteration {self._from}, then "
            f"{before}{', '.join(named)}; restarts go on only if a round advances by at least "
            f"{self.min_iterations} (--ft-max-no-progress-cycles {self.max_rounds}, 0 = off)"
        )


def together(nodes: Iterable[Iterations]) -> Iterations:
    """Return what the nodes know together: one that knows outweighs those that do not."""
    known = list(nodes)
    firsts = [node.first for node in known if node.first is not None]
    lasts = [node.last for node in known if node.last is not None]
    problems = [node.problem for node in known if node.problem]
    return Iterations(
        first=min(firsts, default=None),
        last=max(lasts, default=None),
        problem=problems[0] if problems and not lasts else "",
    )
