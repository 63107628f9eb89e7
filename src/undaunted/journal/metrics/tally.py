"""Keeps of the events of one launch what metrics need, in bounded memory. No clock, no files."""

from __future__ import annotations

from collections import Counter
from copy import copy
from typing import TYPE_CHECKING

from undaunted.journal import events as e
from undaunted.journal.checkpoints import numbers_of
from undaunted.journal.events import InProcessPhase
from undaunted.journal.goodput import ACCOUNTED

if TYPE_CHECKING:
    from undaunted.journal.events import Event

# What rounds, phases and times are made of; progress is kept apart.
_KEPT = {e.JournalOpened, *ACCOUNTED} - {e.RoundProgress}
# What is told apart from that.
_COUNTED = {
    e.RoundProgress,
    e.LimitsChanged,
    e.RankEvent,
    e.EventsLost,
    e.RankEventsLost,
    e.AgentPaused,
    e.NodeChecked,
    e.RoundBlamed,
    InProcessPhase,
    e.JobStarted,
}
# A thousand restarts of eight ranks.
MAX_KEPT = 50_000


class Tally:
    """What one launch on one node has come to.

    Attributes:
        limits: to which the ranks are held, seconds; None = to none.
        lost: events that are missing in the journal, as far as it says so itself.
        rank_events_lost: events of ranks that came too fast, by rank.
        paused_s: how long the launcher itself did not run.
        healthy: whether the last check of the node found nothing wrong; None = there was none.
        inprocess_restarts: restarts inside of the processes.
        checkpoints: saves, failed saves and loads of single ranks, by ``saved``, ``failed`` and
            ``loaded``.
        checkpoint_s: seconds they took, by ``stall_s``, ``total_s`` (of saves) and ``seconds`` (of
            loads).
        blamed: node that ended a round first, by number; in a job of several nodes.
        complete: False if there were more events than are kept: rounds and times are not known.
    """

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self.limits: dict[str, float | None] = {}
        self.lost = 0
        self.rank_events_lost: Counter[int] = Counter()
        self.paused_s = 0.0
        self.healthy: bool | None = None
        self.inprocess_restarts = 0
        self.checkpoints: Counter[str] = Counter()
        self.checkpoint_s: dict[str, float] = {"stall_s": 0.0, "total_s": 0.0, "seconds": 0.0}
        self.blamed: dict[int, str] = {}
        self.complete = True
        self._max_kept = max_kept
        self._kinds: dict[type[Event], int] = {}
        self._kept: list[Event] = []
        self._progress: dict[int, list[e.RoundProgress]] = {}
        self._highest = 0  # iteration that was begun
        self._done = 0  # iterations below this one were completed before this round

    @property
    def kinds(self) -> dict[str, int]:
        """How many events of each kind there were."""
        return {str(kind.__struct_config__.tag): count for kind, count in self._kinds.items()}

    def copy(self) -> Tally:
        """Return one that stays as it is when this one takes more events."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (dict, list)):
                setattr(other, name, value.copy())
        other._progress = {number: seen.copy() for number, seen in self._progress.items()}  # noqa: SLF001
        return other

    def events(self) -> list[Event]:
        """Return the events that rounds and times are made of."""
        return [*self._kept, *(one for seen in self._progress.values() for one in seen)]

    def take(self, event: Event) -> None:
        """Add an event."""
        kind = type(event)
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        if kind in _KEPT:
            self._keep(event)
        if kind in _COUNTED:
            self._count(event)

    def _count(self, event: Event) -> None:
        match event:
            case e.RoundProgress():
                self._take_progress(event)
            case e.LimitsChanged():
                self.limits |= event.limits
            case e.RankEvent(name="checkpoint", text=text):
                self._take_checkpoint(text)
            case e.EventsLost():
                self.lost += event.count
            case e.RankEventsLost():
                self.rank_events_lost[event.rank] += event.count
            case e.AgentPaused():
                self.paused_s += event.seconds
            case e.NodeChecked():
                self.healthy = not event.problem
            case e.RoundBlamed() if len(self.blamed) < self._max_kept:
                self.blamed[event.number] = event.node
            case InProcessPhase(phase="re-enter"):
                self.inprocess_restarts += 1
            case e.JobStarted():
                self.limits |= event.limits

    def _keep(self, event: Event) -> None:
        if len(self._kept) >= self._max_kept:
            self.complete = False
        else:
            self._kept.append(event)

    def _take_progress(self, event: e.RoundProgress) -> None:
        """Keep of a round the first, the last, and the two around what was done before it."""
        if len(self._progress) >= self._max_kept:
            self.complete = False
            return
        if event.round not in self._progress:
            self._done = self._highest
            self._progress[event.round] = []
        self._highest = max(self._highest, event.last_iteration)
        done = self._done
        seen = self._progress[event.round]
        below = event.last_iteration < done
        above = len(seen) > 1 and min(one.last_iteration for one in seen[-2:]) >= done
        if len(seen) > 1 and (below or above):
            seen[-1] = event
        else:
            seen.append(event)

    def _take_checkpoint(self, text: str) -> None:
        what = text.split(" ", 1)[0]
        if what not in ("saved", "failed", "loaded"):
            return
        self.checkpoints[what] += 1
        if what == "failed":
            return  # what follows are a user's words
        for name, value in numbers_of(text).items():
            if name in self.checkpoint_s:
                self.checkpoint_s[name] += value
