"""How often a job may be restarted within a span of time: restarts that are long ago do not count.

Pure, and without a clock: a timer forgets each restart. A leader that takes over begins to count
anew; what is used of the whole budget it knows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from undaunted.base.text import format_duration
from undaunted.coordinator.core.messages import SetTimer

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
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
        """Why the job may not be restarted now, "" = it may."""
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
        others = len(self.recent) - 1
        if others < 1:
            return 0.0
        return float(min(FIRST_PAUSE_S * 2.0 ** min(others - 1, 10), LONGEST_PAUSE_S))
