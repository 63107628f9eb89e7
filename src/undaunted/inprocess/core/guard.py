"""One rank as its guard sees it: what it was told, what must be said again, whether it hangs.

No clock, socket, page or process in here. While the link to the controller is down nothing is
reported; all that matters is said again when it is up.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core.reading import Phase
from undaunted.inprocess.core.standing import Standing
from undaunted.inprocess.core.watchdog import Ages, Passed, Patience, judge

if TYPE_CHECKING:
    from undaunted.inprocess.core.reading import Reading

# A process that has got SIGKILL and does not end is in an uninterruptible call: it counts as lost.
UNKILLABLE_AFTER_S = 10.0
# How long the end of a rank waits for a link over which it could be reported.
_DEFAULT_LIMITS = m.Limits()


@dataclass(slots=True)
class RankGuard:
    """See the module's documentation. Feed events to `handle`, carry out what it returns.

    Attributes:
        standing: of the rank in the call it is in, or was last; None = it has called nothing yet.
        lost: what was, or will be, reported when the rank is gone.
    """

    standing: Standing | None = None
    lost: m.Lost | None = None
    _linked: bool = False
    _downs: int = 0  # how often a wait for the link has begun: tells timers apart
    _patience: Patience = field(default_factory=Patience)
    _told_ns: int = 0  # when the rank was told something last
    _owed: m.ToRank | None = None  # what that was, until it was seen that the rank has done it
    _soft: bool = True  # the soft timeout of this epoch was not reported yet
    _killed: str = ""  # why it was ended by this guard
    _reading: Reading | None = None  # the last one

    def handle(self, event: m.FromRank | m.ToRank | c.GuardEvent, now: int) -> list[c.GuardCommand]:
        """Take one event at ``now`` (monotonic, ns); return the commands it causes, in order."""
        self._patience.wake(now)
        match event:
            case m.Enter():
                return self._enter(event, now)
            case m.Join() | m.Fault() | m.Completed() | m.Leave():
                return self._say(event)
            case m.Record() | m.Stop() | m.Finished() | m.End() | m.Dismissed():
                return self._tell(event, now)
            case c.Look(reading=reading):
                return self._look(reading, now)
            case c.ProcessEnded():
                return self._process_ended(event)
            case c.LinkUp():
                return self._link_up()
            case c.LinkDown():
                self._linked = False
                return self._await_link()
            case c.TimerFired(name=name):
                return self._timer(name, now)

    # --- what the rank says, and is told --------------------------------------------------------

    def _enter(self, enter: m.Enter, now: int) -> list[c.GuardCommand]:
        before = self.standing
        if self.lost is not None or (before is not None and enter.call <= before.enter.call):
            return []
        self.standing = Standing(enter, before.ended if before is not None else None)
        self._owed, self._soft = None, True
        look = self._look_in(enter.limits.soft_timeout, now)
        return [*(self._report(enter) if self._linked else self._await_link()), look]

    def _say(self, message: m.Join | m.Fault | m.Completed | m.Leave) -> list[c.GuardCommand]:
        if self.standing is None or self.lost is not None or not self.standing.hear(message):
            return []
        return self._report(message)

    def _tell(self, message: m.ToRank, now: int) -> list[c.GuardCommand]:
        if self.standing is None or self.lost is not None or not self.standing.tell(message):
            return []
        return self._pass(message, now)

    def _pass(self, message: m.ToRank, now: int) -> list[c.GuardCommand]:
        if isinstance(message, m.Record):
            self._soft = True
        self._owed, self._told_ns = message, now
        soonest = min(self._limits.soft_timeout, self._limits.hard_timeout)
        if self._patience.looks_within(soonest, now):
            return [c.Pass(message)]
        return [c.Pass(message), self._look_in(soonest, now)]

    def _report(self, message: m.FromGuard) -> list[c.GuardCommand]:
        return [c.Report(message)] if self._linked else []

    # --- the link -------------------------------------------------------------------------------

    def _link_up(self) -> list[c.GuardCommand]:
        self._linked = True
        if self.lost is not None:
            return self._report_lost()
        return [] if self.standing is None else self._report(self.standing.resume())

    def _await_link(self) -> list[c.GuardCommand]:
        """Set a limit to how long the rank goes on without a controller."""
        if self.standing is None or (self.standing.over and self.lost is None):
            return []
        self._downs += 1
        return [c.SetTimer(f"link {self._downs}", self._limits.heartbeat_timeout)]

    def _link_timeout(self, now: int) -> list[c.GuardCommand]:
        if self.lost is not None:
            return [c.Finish()]
        standing = self.standing
        if standing is None or standing.over:
            return []
        text = f"no controller could be reached for {self._limits.heartbeat_timeout:g} s"
        standing.leave(text)
        return self._pass(m.End(standing.enter.call, "controller", text), now)

    # --- the page -------------------------------------------------------------------------------

    def _look(self, reading: Reading | None, now: int) -> list[c.GuardCommand]:
        self._patience.looked()
        standing = self.standing
        if standing is None or self.lost is not None or self._killed:
            return []
        limits = standing.enter.limits
        if reading is None:
            return [self._look_in(limits.soft_timeout, now)]
        self._reading = reading
        if self._owed is not None and _has_done(self._owed, standing, reading):
            self._owed = None
        if standing.over and self._owed is None and reading.phase is Phase.OUTSIDE:
            return []  # until the next call
        verdict = judge(reading, self._ages(reading, now), limits, soft=self._counts(reading))
        look = self._look_in(verdict.look_in_s, now)
        if verdict.passed is Passed.SOFT:
            return [*self._soft_timeout(verdict.text), look]
        return self._end_rank(verdict.text) if verdict.passed is Passed.HARD else [look]

    def _look_in(self, delay_s: float, now: int) -> c.LookIn:
        self._patience.expect(delay_s, now)
        return c.LookIn(delay_s)

    def _ages(self, reading: Reading, now: int) -> Ages:
        age = self._patience.age
        return Ages(
            auto=age("auto", reading.auto_ns, now),
            ping=age("ping", reading.ping_ns, now) if reading.ping_ns else None,
            atomic=age("atomic", reading.atomic_since_ns, now) if reading.atomic > 0 else None,
            owed=age("owed", self._told_ns, now) if self._owed is not None else None,
        )

    def _counts(self, reading: Reading) -> bool:
        """Whether the soft timeout does: the page shows an epoch that is on."""
        standing = self.standing
        if standing is None or not standing.running or not self._soft:
            return False
        return (reading.call, reading.epoch) == (standing.enter.call, standing.epoch)

    def _soft_timeout(self, text: str) -> list[c.GuardCommand]:
        self._soft = False
        assert self.standing is not None
        enter = self.standing.enter
        reason = self._reason("SOFT_TIMEOUT", text, f"soft timeout of {enter.job_rank}")
        return self._say(m.Fault(enter.call, enter.job_rank, self.standing.epoch, reason))

    # --- the process ----------------------------------------------------------------------------

    def _end_rank(self, text: str) -> list[c.GuardCommand]:
        self._killed = text
        return [
            # A stopped process finds SIGTERM when it goes on, and does nothing else before.
            c.Signal((signal.SIGTERM, signal.SIGCONT)),
            c.SetTimer("grace", self._limits.termination_grace_time),
        ]

    def _process_ended(self, event: c.ProcessEnded) -> list[c.GuardCommand]:
        if event.reading is not None:
            self._reading = event.reading
        if self.lost is None:
            self._lose(event.text)
        if self.lost is None:
            return [c.Finish()]  # it has called nothing, and nobody knows it
        return self._report_lost() if self._linked else self._await_link()

    def _lose(self, text: str) -> None:
        if self.standing is None:
            return
        enter = self.standing.enter
        kind = "HARD_TIMEOUT" if self._killed else "TERMINATED"
        text = f"{self._killed}; {text}" if self._killed else text
        self.lost = m.Lost(enter.call, enter.job_rank, self._reason(kind, text), enter.pid)

    def _report_lost(self) -> list[c.GuardCommand]:
        assert self.lost is not None
        return [c.Report(self.lost), c.Finish()]

    def _reason(self, kind: str, text: str, fingerprint: str = "") -> m.Reason:
        assert self.standing is not None
        enter, reading = self.standing.enter, self._reading
        rank = reading.rank if reading is not None and reading.call == enter.call else -1
        return m.Reason(kind, enter.job_rank, rank, text, fingerprint)

    # --- timers ---------------------------------------------------------------------------------

    def _timer(self, name: str, now: int) -> list[c.GuardCommand]:
        if name == f"link {self._downs}" and not self._linked:
            return self._link_timeout(now)
        if name == "grace" and self.lost is None:
            return [
                c.Signal((signal.SIGKILL,)),
                c.SetTimer("unkillable", UNKILLABLE_AFTER_S),
            ]
        if name == "unkillable" and self.lost is None:
            self._lose(f"it has not ended {UNKILLABLE_AFTER_S:g} s after SIGKILL")
            return [] if self.lost is None else self._report(self.lost)
        return []

    @property
    def _limits(self) -> m.Limits:
        return _DEFAULT_LIMITS if self.standing is None else self.standing.enter.limits


def _has_done(told: m.ToRank, standing: Standing, reading: Reading) -> bool:
    """Whether a rank has done what it was told, as far as its page and its words show."""
    if isinstance(told, m.Record):
        up = (reading.call, reading.epoch) == (told.call, told.epoch)
        return up or bool(standing.said)
    if isinstance(told, m.Stop):
        return reading.phase is Phase.RECOVERING or standing.has_left(told.epoch)
    # One that is dismissed while it recovers must come to an end with that as well.
    busy = reading.phase is Phase.RECOVERING and not isinstance(told, m.Dismissed)
    return reading.phase is Phase.OUTSIDE or busy
