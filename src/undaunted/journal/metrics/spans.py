"""Makes spans of a launcher: its job, rounds, restarts, saves and loads so far. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.text import one_line
from undaunted.journal import events as e
from undaunted.journal.checkpoints import save_of

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = 2_000
"""Spans that wait to be sent; of more, the oldest are dropped."""

_JOB = "job"
_FINE = frozenset(("finished", "preempted"))
Value = str | int | float


class JobSpan(NamedTuple):
    """A stretch of time, in Unix nanoseconds.

    Attributes:
        name: ``job``, ``round``, ``restart``, ``in-process restart``, ``save`` or ``load``.
        key: its name among all spans of a launch.
        parent: key of the span in which it lies; "" = none.
        began_ns, ended_ns: when.
        about: what else is known.
        error: why it failed; "" = it did not.
    """

    name: str
    key: str
    parent: str
    began_ns: int
    ended_ns: int
    about: Mapping[str, Value]
    error: str = ""


class Spans:
    """Makes spans of the events of one launch, each when it has ended."""

    def __init__(self, most: int = MOST) -> None:
        self._ready: deque[JobSpan] = deque(maxlen=most)
        self._ahead_ns = 0  # of wall time
        self._began_ns: int | None = None
        self._round: e.RoundStarted | None = None
        self._error = ""
        self._failed: tuple[int, int] | None = None  # which round, and when
        self._running: set[int] = set()  # ranks that have begun with the program
        self._detected: e.InProcessPhase | None = None
        self._count = 0

    def take(self, event: e.Event) -> None:  # noqa: C901 - one case for each kind
        """Take in the next event."""
        if not self._ahead_ns and event.wall > 0:
            self._ahead_ns = round(event.wall * 1e9) - event.t
        match event:
            case e.RankEvent():
                self._checkpoint(event)
            case e.RankMilestone(name="first_line"):
                self._runs(event)
            case e.JobStarted():
                self._began_ns = event.t
            case e.RoundStarted():
                self._end_round(event.t)
                self._round, self._error = event, ""
                self._running.clear()
                self._detected = None
            case e.FailureDetected():
                moment = event.t if event.since_ns is None else event.since_ns
                self._fails(event.round, moment, event.detail or event.kind)
            case e.Verdict():
                self._error = event.line
            case e.Decision(action="restart"):
                self._fails(event.round, event.t, event.reason)
            case e.Decision():
                self._failed = None
            case e.InProcessPhase():
                self._inside(event)
            case e.RoundStopped():
                self._end_round(event.t)
            case e.JobEnded():
                self._end_round(event.t)
                self._end_job(event)

    def drain(self) -> list[JobSpan]:
        """Return the spans that have ended since the last time."""
        ready = list(self._ready)
        self._ready.clear()
        return ready

    def _fails(self, number: int, moment_ns: int, why: str) -> None:
        """A round has failed: the first reason counts."""
        self._error = self._error or why
        if self._failed is None or self._failed[0] != number:
            self._failed = (number, moment_ns)

    def _end_round(self, t: int) -> None:
        one, self._round = self._round, None
        if one is not None:
            about = {"ranks": len(one.ranks), "world_size": one.world_size, "round": one.round}
            self._add("round", _round_key(one.round), _JOB, one.t, t, about, self._error)

    def _end_job(self, event: e.JobEnded) -> None:
        about: dict[str, Value] = {"outcome": event.outcome, "exit_code": event.exit_code}
        error = "" if event.outcome in _FINE else event.reason or event.outcome
        began_ns = event.t if self._began_ns is None else self._began_ns
        self._add(_JOB, _JOB, "", began_ns, event.t, about, error)

    def _runs(self, event: e.RankMilestone) -> None:
        """A rank has begun with the program; the last one ends a restart."""
        self._running.add(event.rank)
        one, failed = self._round, self._failed
        if one is None or failed is None or failed[0] >= one.round:
            return
        if self._running.issuperset(one.ranks):
            self._failed = None
            about = {"after_round": failed[0], "round": one.round}
            self._add("restart", f"restart {one.round}", _JOB, failed[1], event.at_ns, about)

    def _inside(self, event: e.InProcessPhase) -> None:
        began = self._detected
        if event.phase == "detect":
            self._detected = event
        elif event.phase == "re-enter" and began is not None:
            self._detected = None
            about = {"epoch": event.epoch, "members": event.members, "round": event.round}
            self._add_in(event.round, "in-process restart", began.t, event.t, about)

    def _checkpoint(self, event: e.RankEvent) -> None:
        save = save_of(event)
        if save is None:
            return
        about: dict[str, Value] = {"rank": event.rank, "step": save.step, "round": event.round}
        name = "load" if save.kind == "loaded" else "save"
        if save.kind == "saved":
            about["stall_s"] = (save.stalled_ns - save.began_ns) / 1e9
        error = event.text if save.kind == "failed" else ""
        self._add_in(event.round, name, save.began_ns, save.ended_ns, about, error)

    def _add_in(
        self,
        number: int,
        name: str,
        began_ns: int,
        ended_ns: int,
        about: Mapping[str, Value],
        error: str = "",
    ) -> None:
        self._count += 1
        key = f"{name} {self._count}"
        self._add(name, key, _round_key(number), began_ns, ended_ns, about, error)

    def _add(
        self,
        name: str,
        key: str,
        parent: str,
        began_ns: int,
        ended_ns: int,
        about: Mapping[str, Value],
        error: str = "",
    ) -> None:
        moments = (began_ns + self._ahead_ns, max(began_ns, ended_ns) + self._ahead_ns)
        self._ready.append(JobSpan(name, key, parent, *moments, about, one_line(error)))


def _round_key(number: int) -> str:
    return f"round {number}"
