"""The speed of a rank, from one look at its page to the next. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.progress.snapshot import PageSnapshot

_NS = 1_000_000_000
# Steps are timed over so many looks, or so many seconds, whichever is longer.
_LOOKS = 2
_RECENT_S = 5.0
_SECTION_LOOKS = 15
_KEPT = 64


@dataclass(slots=True)
class Speed:
    """Of one rank in one round; begin anew with each process."""

    _steps: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _sections: dict[str, tuple[int, deque[int]]] = field(default_factory=dict)

    def look(self, page: PageSnapshot) -> None:
        """Take in what the page says now."""
        if page.iteration is not None and page.iteration_ns is not None:
            now = (page.iteration, page.iteration_ns)
            if self._steps and (now[0] < self._steps[-1][0] or now[1] < self._steps[-1][1]):
                self._steps.clear()  # it counts anew
            if not self._steps or now != self._steps[-1]:
                self._steps.append(now)
        for section in page.sections.values():
            count, lasted = self._sections.get(section.name, (0, deque(maxlen=_SECTION_LOOKS)))
            if section.count != count:
                lasted.append(section.last_ns)
                self._sections[section.name] = (section.count, lasted)

    def recent_s(self, page: PageSnapshot) -> float | None:
        """Seconds per step lately; after the first look, since the first step of the round."""
        if len(self._steps) < 2:
            return mean_s(page)
        last, since = self._steps[-1], self._steps[0]
        for count, step in enumerate(reversed(self._steps)):
            since = step
            if count + 1 >= _LOOKS and last[1] - step[1] >= _RECENT_S * _NS:
                break
        steps = last[0] - since[0]
        return (last[1] - since[1]) / steps / _NS if steps else None

    def sections_s(self) -> dict[str, float]:
        """Return the median time of each section lately, where it was left three times or more."""
        return {
            name: median(lasted) / _NS
            for name, (_, lasted) in self._sections.items()
            if len(lasted) > 2
        }


def mean_s(page: PageSnapshot) -> float | None:
    """Return the mean time of a step in this round, seconds; None if it is not known."""
    known = (page.iteration, page.first_iteration, page.iteration_ns, page.first_step_ns)
    iteration, first, now_ns, first_ns = known
    if iteration is None or first is None or now_ns is None or first_ns is None:
        return None
    steps = iteration - first
    return (now_ns - first_ns) / steps / _NS if steps > 0 and now_ns > first_ns else None
