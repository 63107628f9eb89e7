"""One rank as its guard sees it: what it was told, what must be said again, whether it hangs.

No clock, socket, page or process in here. While the link to the controller is down nothing is
reported; all that matters is said again when it is up.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core.reading import Phase

if TYPE_CHECKING:
    from collections.abc import Hashable

    from undaunted.inprocess.core.reading import Reading

_NS = 1_000_000_000
# A process that has got SIGKILL and does not end is in an uninterruptible call: it counts as lost.
UNKILLABLE_AFTER_S = 10.0
# Before the rank's first call.
_DEFAULT_LIMITS = m.Limits()
# Where a look comes later than this, the guard itself stood still.
_STOOD_STILL_NS = 500_000_000
# Timers may fire early by their resolution: a look just before a limit would find nothing.
_MARGIN_S = 0.001
# What a rank has not done, for people.
_TURNS = "its Python interpreter has not turned"
_PINGS = "it has not called ping()"


@dataclass(slots=True)
class RankCall:
    """One rank in one call: what it was told, and what it has said since.

    That is enough to tell a new controller. Keeps out messages of another call or of an earlier
    epoch, and repetitions.

    Attributes:
        enter: the rank's first message in this call.
        ended: how the last call ended that has ended for this rank.
        record: the last record that the rank was told.
        stop: of that record's epoch.
        said: what the rank has said since the record.
        over: whether the call is over for this rank: it was told so, or has left.
    """

    enter: m.Enter
    ended: m.Finished | m.End | None = None
    record: m.Record | None = None
    stop: m.Stop | None = None
    said: list[m.Said] = field(default_factory=list)
    over: bool = False

    @property
    def epoch(self) -> int:
        """The epoch it is in or joins; that of the last record, 0 before the first."""
        return 0 if self.record is None else self.record.epoch

    @property
    def running(self) -> bool:
        """Whether the epoch of the last record is on, as far as the rank knows."""
        return self.record is not None and self.stop is None and not self.over

    @property
    def on(self) -> bool:
        """Whether the call has begun, and was not said to have ended; the rank may have left it.

        One that is to take the place of a lost rank is in the others' call from the beginning.
        """
        ended = self.ended is not None and self.ended.call == self.enter.call
        return (self.record is not None or self.enter.rejoin) and not ended

    def hear(self, message: m.Said) -> bool:
        """Take what the rank says; return whether it is news."""
        mine = message.call == self.enter.call and message.job_rank == self.enter.job_rank
        late = message.epoch < self.epoch and not isinstance(message, m.Leave)
        if self.over or not mine or late:
            return False
        if any(_kind(message) == _kind(each) for each in self.said):
            return False
        self.said.append(message)
        self.over = isinstance(message, m.Leave)
        return True

    def tell(self, message: m.ToRank) -> bool:
        """Take what the controller says; return whether the rank must hear of it."""
        if self.over or not self._concerns(message):
            return False
        match message:
            case m.Record():
                self.enter = msgspec.structs.replace(self.enter, call=message.call)
                self.record, self.stop = message, None
                self.said.clear()
            case m.Stop():
                self.stop = message
            case m.Finished() | m.End():
                self.ended, self.over = message, True
            case m.Dismissed():
                self.leave(message.text)
        return True

    def leave(self, text: str) -> None:
        """The rank is told to take no part any more: that counts as if it had said so."""
        reason = m.Reason("UNRESPONSIVE", self.enter.job_rank, text=text)
        self.hear(m.Leave(self.enter.call, self.enter.job_rank, self.epoch, reason))

    def resume(self) -> m.Resume:
        """All of it."""
        return m.Resume(self.enter, self.record, self.stop, tuple(self.said), self.ended)

    def has_left(self, epoch: int) -> bool:
        """Whether it has said that it is done with an epoch, for the next one or for good."""
        return any(
            isinstance(each, m.Leave) or (isinstance(each, m.Join) and each.epoch > epoch)
            for each in self.said
        )

    def _concerns(self, message: m.ToRank) -> bool:
        searching = self.enter.rejoin and self.record is None
        if message.call != self.enter.call and not searching:
            return False
        match message:
            case m.Record(epoch=epoch, members=members, joined=joined):
                newer = self.record is None or epoch > self.record.epoch
                # A record that was on its way to the process before means that one.
                return newer and self.enter.job_rank in (joined if searching else members)
            case m.Stop(epoch=epoch):
                return self.running and epoch == self.epoch
            case m.Finished(epoch=epoch):
                return self.record is not None and epoch == self.epoch
            case m.Dismissed(call=call, job_rank=job_rank):
                return (call, job_rank) == (self.enter.call, self.enter.job_rank)
        return True


def _kind(message: m.Said) -> Hashable:
    """What a rank says once only in an epoch."""
    kind = message.reason.kind if isinstance(message, m.Fault) else ""
    return type(message), message.epoch, kind


# --- whether it makes progress --------------------------------------------------------------------


class Ages(msgspec.Struct, frozen=True):
    """How long ago something was, in seconds; None = it was not, and limits nothing.

    Attributes:
        auto: since the interpreter turned.
        ping: since ``ping`` was called.
        atomic: since the outermost ``atomic`` began.
        owed: since the rank was told something that it has not done yet.
    """

    auto: float
    ping: float | None = None
    atomic: float | None = None
    owed: float | None = None


class Passed(enum.Enum):
    """Which limit a rank has passed."""

    NONE = enum.auto()
    SOFT = enum.auto()
    HARD = enum.auto()


class Judgement(msgspec.Struct, frozen=True):
    """The result of a look at the page.

    Attributes:
        passed: the limit that the rank has passed.
        look_in_s: when to look next.
        text: what the rank has not done for how long; "" = nothing was passed.
    """

    passed: Passed
    look_in_s: float
    text: str = ""


def judge(reading: Reading, ages: Ages, limits: m.Limits, *, soft: bool) -> Judgement:
    """Say whether a limit is passed, and when one could be next.

    Args:
        reading: of the rank's page.
        ages: of what it shows.
        limits: of the call.
        soft: whether the soft timeout counts: not if it was reported in this epoch, or the epoch is
            over.
    """
    if reading.unguarded > 0:
        return Judgement(Passed.NONE, limits.soft_timeout / 2)
    stamps = _stamps(reading.phase, ages)
    if soft and reading.phase is Phase.RUNNING:
        age, what = max(stamps)
        if age > limits.soft_timeout:
            return Judgement(Passed.SOFT, _MARGIN_S, f"{what} for {age:.1f} s (soft timeout)")
        return Judgement(Passed.NONE, limits.soft_timeout - age + _MARGIN_S)
    if ages.owed is not None:
        stamps.append((ages.owed, "it has not done what the controller told it"))
    if not stamps:
        return Judgement(Passed.NONE, limits.soft_timeout)
    age, what = max(stamps)
    left = limits.hard_timeout - age
    if reading.atomic > 0 and ages.atomic is not None:
        left = max(left, limits.barrier_timeout - ages.atomic)
    if left < 0:
        return Judgement(Passed.HARD, _MARGIN_S, f"{what} for {age:.1f} s (hard timeout)")
    return Judgement(Passed.NONE, left + _MARGIN_S)


def _stamps(phase: Phase, ages: Ages) -> list[tuple[float, str]]:
    """The ages that a limit is compared with in this phase, and what they say of the rank."""
    if phase is Phase.RUNNING:
        return [(ages.auto, _TURNS)] + ([(ages.ping, _PINGS)] if ages.ping is not None else [])
    return [(ages.auto, _TURNS)] if phase is Phase.RECOVERING else []


@dataclass(slots=True)
class Patience:
    """Ages of moments, without the time for which the guard itself stood still.

    What stops a guard (a stopped container, a host that swaps) has often stopped its rank as well.
    """

    _due_ns: int | None = None
    _still_ns: int = 0  # all the time for which it stood still
    _still_since_ns: int = 0  # the last time
    _still_before_ns: int = 0  # all the time, without the last
    _known: dict[str, tuple[int, int]] = field(default_factory=dict)

    def expect(self, delay_s: float, now: int) -> None:
        """The guard will look after so long."""
        self._due_ns = now + round(delay_s * _NS)

    def looked(self) -> None:
        """It has looked, and will not before it is expected to again."""
        self._due_ns = None

    def looks_within(self, delay_s: float, now: int) -> bool:
        """Whether it will look no later than after so long anyway."""
        return self._due_ns is not None and self._due_ns <= now + round(delay_s * _NS)

    def wake(self, now: int) -> None:
        """Something happens: notice if a look is overdue by far."""
        due = self._due_ns
        if due is not None and now - due > _STOOD_STILL_NS:
            self._still_before_ns = self._still_ns
            self._still_since_ns = due
            self._still_ns += now - due
            self._due_ns = None  # until it looks again

    def age(self, name: str, moment: int, now: int) -> float:
        """Seconds since a moment, the last of its kind."""
        known = self._known.get(name)
        if known is None or known[0] != moment:
            before = moment <= self._still_since_ns
            known = (moment, self._still_before_ns if before else self._still_ns)
            self._known[name] = known
        return (now - moment - (self._still_ns - known[1])) / _NS


# --- the machine ----------------------------------------------------------------------------------


@dataclass(slots=True)
class RankGuard:
    """See the module's documentation. Feed events to `handle`, carry out what it returns.

    Attributes:
        call: the rank in the call it is in, or was in last; None = it has called nothing yet.
        lost: what was, or will be, reported when the rank is gone.
    """

    call: RankCall | None = None
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
        before = self.call
        if self.lost is not None or (before is not None and enter.call <= before.enter.call):
            return []
        self.call = RankCall(enter, before.ended if before is not None else None)
        self._owed, self._soft = None, True
        look = self._look_in(enter.limits.soft_timeout, now)
        return [*(self._report(enter) if self._linked else self._await_link()), look]

    def _say(self, message: m.Said) -> list[c.GuardCommand]:
        if self.call is None or self.lost is not None or not self.call.hear(message):
            return []
        return self._report(message)

    def _tell(self, message: m.ToRank, now: int) -> list[c.GuardCommand]:
        if self.call is None or self.lost is not None or not self.call.tell(message):
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
        return [] if self.call is None else self._report(self.call.resume())

    def _await_link(self) -> list[c.GuardCommand]:
        """Set a limit to how long the rank goes on without a controller."""
        if self.call is None or (self.call.over and self.lost is None):
            return []
        self._downs += 1
        return [c.SetTimer(f"link {self._downs}", self._limits.heartbeat_timeout)]

    def _link_timeout(self, now: int) -> list[c.GuardCommand]:
        if self.lost is not None:
            return [c.Finish()]
        call = self.call
        if call is None or call.over:
            return []
        text = f"no controller could be reached for {self._limits.heartbeat_timeout:g} s"
        call.leave(text)
        return self._pass(m.End(call.enter.call, "controller", text), now)

    # --- the page -------------------------------------------------------------------------------

    def _look(self, reading: Reading | None, now: int) -> list[c.GuardCommand]:
        self._patience.looked()
        call = self.call
        if call is None or self.lost is not None or self._killed:
            return []
        limits = call.enter.limits
        if reading is None:
            return [self._look_in(limits.soft_timeout, now)]
        self._reading = reading
        if self._owed is not None and _has_done(self._owed, call, reading):
            self._owed = None
        if call.over and self._owed is None and reading.phase is Phase.OUTSIDE:
            return []  # until the next call
        judgement = judge(reading, self._ages(reading, now), limits, soft=self._counts(reading))
        look = self._look_in(judgement.look_in_s, now)
        if judgement.passed is Passed.SOFT:
            return [*self._soft_timeout(judgement.text), look]
        return self._end_rank(judgement.text) if judgement.passed is Passed.HARD else [look]

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
        call = self.call
        if call is None or not call.running or not self._soft:
            return False
        return (reading.call, reading.epoch) == (call.enter.call, call.epoch)

    def _soft_timeout(self, text: str) -> list[c.GuardCommand]:
        self._soft = False
        assert self.call is not None
        enter = self.call.enter
        reason = self._reason("SOFT_TIMEOUT", text, f"soft timeout of {enter.job_rank}")
        return self._say(m.Fault(enter.call, enter.job_rank, self.call.epoch, reason))

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
        if self.call is None:
            return
        enter = self.call.enter
        kind = "HARD_TIMEOUT" if self._killed else "TERMINATED"
        text = f"{self._killed}; {text}" if self._killed else text
        self.lost = m.Lost(enter.call, enter.job_rank, self._reason(kind, text), enter.pid)

    def _report_lost(self) -> list[c.GuardCommand]:
        assert self.lost is not None
        return [c.Report(self.lost), c.Finish()]

    def _reason(self, kind: str, text: str, fingerprint: str = "") -> m.Reason:
        assert self.call is not None
        enter, reading = self.call.enter, self._reading
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
        return _DEFAULT_LIMITS if self.call is None else self.call.enter.limits


def _has_done(told: m.ToRank, call: RankCall, reading: Reading) -> bool:
    """Whether a rank has done what a message demands, as far as its page and its messages show."""
    if isinstance(told, m.Record):
        up = (reading.call, reading.epoch) == (told.call, told.epoch)
        return up or bool(call.said)
    if isinstance(told, m.Stop):
        return reading.phase is Phase.RECOVERING or call.has_left(told.epoch)
    # One that is dismissed while it recovers must come to an end with that as well.
    busy = reading.phase is Phase.RECOVERING and not isinstance(told, m.Dismissed)
    return reading.phase is Phase.OUTSIDE or busy
