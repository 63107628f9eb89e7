"""The guard's state machine for one rank: its call, its progress, its end.

No clock, socket, page or process in here. While the link to the controller is down nothing is
reported; when it is up again, the guard reports the rank's state as a whole (`Resume`).
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core import hang
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core.reading import Phase

if TYPE_CHECKING:
    from collections.abc import Hashable

    from undaunted.inprocess.core.reading import Reading

_NS = 1_000_000_000
# A process that has got SIGKILL and does not end is in an uninterruptible call: it counts as lost.
UNKILLABLE_AFTER_S = 10.0
# A rank that has not said by then what it does when a hang is looked into runs no Python code.
ANSWER_S = 1.5
# Before the rank's first call.
_DEFAULT_LIMITS = m.Limits()
# If a look comes later than this, the guard itself has stood still.
_STOOD_STILL_NS = 500_000_000
# Timers may fire early by their resolution: a look just before a limit would find nothing.
_MARGIN_S = 0.001
# For people: the progress that a rank has not shown.
_TURNS = "its Python interpreter has not turned"
_PINGS = "it has not called ping()"
_STAYS = "it has not left the function"


@dataclass(slots=True)
class RankCall:
    """One rank in one call: what it has heard last, and its own messages since.

    A new controller needs no more. Drops messages of another call or of an earlier epoch, and
    repetitions.

    Attributes:
        enter: the rank's first message in this call.
        ended: the last outcome of a call that the rank has heard, of this call or an earlier one.
        record: the last record that the rank has heard.
        stop: of that record's epoch.
        said: the rank's messages since that record.
        over: whether the call is over for this rank: it has heard the outcome, or has left.
        dismissed: why it has to leave, until it has left; None = it has not.
    """

    enter: m.Enter
    ended: m.Finished | m.End | None = None
    record: m.Record | None = None
    stop: m.Stop | None = None
    said: list[m.Said] = field(default_factory=list)
    over: bool = False
    dismissed: m.Dismissed | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the last record; 0 before the first one."""
        return 0 if self.record is None else self.record.epoch

    @property
    def running(self) -> bool:
        """Return whether the epoch of the last record still runs, as far as the rank knows."""
        return self.record is not None and self.stop is None and not self.over

    @property
    def left(self) -> bool:
        """Return whether the rank has heard the outcome or has left: nobody waits for it."""
        return self.over and self.dismissed is None

    @property
    def on(self) -> bool:
        """Return whether the call goes on for the others, which the rank may have left.

        A process that takes the place of a lost rank is in the others' call from the beginning.
        """
        ended = self.ended is not None and self.ended.call == self.enter.call
        return (self.record is not None or self.enter.rejoin) and not ended

    def hear(self, message: m.Said) -> bool:
        """Take a message of the rank; return whether it is new."""
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
        """Take a message of the controller; return whether the rank must hear it."""
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
                self.dismissed, self.over = message, True
        return True

    def leave(self, text: str) -> m.Leave:
        """The rank has left: from now on it counts as having said `Leave`, which is returned."""
        reason = m.Reason("UNRESPONSIVE", self.enter.job_rank, text=text)
        leave = m.Leave(self.enter.call, self.enter.job_rank, self.epoch, reason)
        self.said.append(leave)
        self.dismissed, self.over = None, True
        return leave

    def resume(self, waited_s: float = 0.0) -> m.Resume:
        """Return all of it as a message for a controller."""
        said = tuple(self.said)
        return m.Resume(self.enter, self.record, self.stop, said, self.ended, waited_s)

    def has_left(self, epoch: int) -> bool:
        """Return whether the rank has left an epoch: has joined a later one, or left the call."""
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
                # A record may have been on its way to the process before this one.
                return newer and self.enter.job_rank in (joined if searching else members)
            case m.Stop(epoch=epoch):
                return self.running and epoch == self.epoch
            case m.Finished(epoch=epoch):
                return self.record is not None and epoch == self.epoch
            case m.Dismissed(call=call, job_rank=job_rank):
                return (call, job_rank) == (self.enter.call, self.enter.job_rank)
        return True


def _kind(message: m.Said) -> Hashable:
    """Return the key of a message that a rank says only once in an epoch."""
    kind = message.reason.kind if isinstance(message, m.Fault) else ""
    return type(message), message.epoch, kind


# --- whether it makes progress --------------------------------------------------------------------


class Ages(msgspec.Struct, frozen=True):
    """Seconds since the last signs of progress; None = there is no such sign, and no limit on it.

    Attributes:
        auto: since the interpreter turned.
        ping: since ``ping`` was called.
        atomic: since the outermost ``atomic`` began; None also = it puts nothing off.
        owed: since a message to the rank that it has not obeyed yet.
    """

    auto: float
    ping: float | None = None
    atomic: float | None = None
    owed: float | None = None


class Passed(enum.Enum):
    """A limit that a rank can pass."""

    NONE = enum.auto()
    SOFT = enum.auto()
    HARD = enum.auto()


class Judgement(msgspec.Struct, frozen=True):
    """The result of a look at the page.

    Attributes:
        passed: the limit that the rank has passed.
        look_in_s: when to look next, in seconds.
        text: the missing progress and for how long; "" = no limit was passed.
    """

    passed: Passed
    look_in_s: float
    text: str = ""


def judge(
    reading: Reading, ages: Ages, limits: m.Limits, *, soft: bool, dismissed: bool = False
) -> Judgement:
    """Say whether a limit is passed, and when one could be next.

    Args:
        reading: of the rank's page.
        ages: of the times on the page.
        limits: of the call.
        soft: whether the soft timeout counts: False if it was reported in this epoch already, or
            the epoch is over.
        dismissed: whether the rank owes it to leave the call.
    """
    stays = dismissed and reading.phase is Phase.RUNNING and ages.owed is not None
    if reading.unguarded > 0 and not stays:
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
    limit_s, limit = limits.hard_timeout, "hard timeout"
    if stays and ages.owed is not None:  # others wait for it, or have gone on without it
        age, what = ages.owed, _STAYS
        limit_s, limit = limits.termination_grace_time, "termination_grace_time"
    left = limit_s - age
    if reading.atomic > 0 and ages.atomic is not None:
        left = max(left, limits.barrier_timeout - ages.atomic)
    if left < 0:
        return Judgement(Passed.HARD, _MARGIN_S, f"{what} for {age:.1f} s ({limit})")
    return Judgement(Passed.NONE, left + _MARGIN_S)


def _stamps(phase: Phase, ages: Ages) -> list[tuple[float, str]]:
    """The ages that count in this phase, each with its words for people."""
    if phase is Phase.RUNNING:
        return [(ages.auto, _TURNS)] + ([(ages.ping, _PINGS)] if ages.ping is not None else [])
    return [(ages.auto, _TURNS)] if phase is Phase.RECOVERING else []


@dataclass(slots=True)
class Patience:
    """Measures ages, without the time for which the guard itself stood still.

    A guard stands still in a stopped container, or on a host that swaps, mostly with its rank.
    """

    _due_ns: int | None = None
    _still_ns: int = 0  # sum of the times for which it stood still
    _still_since_ns: int = 0  # when it stood still last
    _still_before_ns: int = 0  # the sum without that last time
    _known: dict[str, tuple[int, int]] = field(default_factory=dict)

    def expect(self, delay_s: float, now: int) -> None:
        """The guard will look in ``delay_s``."""
        self._due_ns = now + round(delay_s * _NS)

    def looked(self) -> None:
        """The guard has looked; it will not look again before the next `expect`."""
        self._due_ns = None

    def looks_within(self, delay_s: float, now: int) -> bool:
        """Return whether it will look within ``delay_s`` anyway."""
        return self._due_ns is not None and self._due_ns <= now + round(delay_s * _NS)

    def wake(self, now: int) -> None:
        """Called at every event: notices a look that is long overdue."""
        due = self._due_ns
        if due is not None and now - due > _STOOD_STILL_NS:
            self._still_before_ns = self._still_ns
            self._still_since_ns = due
            self._still_ns += now - due
            self._due_ns = None  # until it looks again

    def age(self, name: str, moment: int, now: int) -> float:
        """Return the seconds since ``moment``, the last one called ``name``."""
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
        call: the rank in its present or last call; None = it has called nothing yet.
        lost: the report of its end; None = it has not ended.
        killed: why this guard has ended it, "" = it has not.
    """

    call: RankCall | None = None
    lost: m.Lost | None = None
    killed: str = ""
    _linked: bool = False
    _said_ns: int = 0  # when the rank has said something last
    _downs: int = 0  # how often a wait for the link has begun: tells timers apart
    _patience: Patience = field(default_factory=Patience)
    _told_ns: int = 0  # when the last message went to the rank
    _owed: m.ToRank | None = None  # that message, until its page shows that the rank has obeyed
    _soft: bool = True  # the soft timeout of this epoch was not reported yet
    _reading: Reading | None = None  # the last one
    _asked: bool = False  # the time is over in which the rank was to give evidence
    _cut_off: bool = False  # the others begin without the rank, however long it needs

    def handle(self, event: m.FromRank | m.ToRank | c.GuardEvent, now: int) -> list[c.GuardCommand]:
        """Take one event at ``now`` (monotonic, ns); return the commands it causes, in order."""
        self._patience.wake(now)
        match event:
            case m.Enter():
                return self._enter(event, now)
            case m.Join() | m.Fault() | m.Completed() | m.Evidence() | m.Leave():
                return self._say(event, now)
            case m.Record() | m.Stop() | m.Finished() | m.End() | m.Dismissed():
                return self._tell(event, now)
            case c.Look(reading=reading):
                said = self._bear_witness(event, now) + self._see_off(reading)
                return said + self._look(reading, event.state, now)
            case c.ProcessEnded():
                return self._process_ended(event)
            case c.LinkUp():
                return self._link_up(now)
            case c.LinkDown():
                self._linked = False
                return self._await_link()
            case c.TimerFired(name=name):
                return self._timer(name, now)

    # --- messages from the rank, and to it ------------------------------------------------------

    def _enter(self, enter: m.Enter, now: int) -> list[c.GuardCommand]:
        before = self.call
        if self.lost is not None or (before is not None and enter.call <= before.enter.call):
            return []
        self.call = RankCall(enter, before.ended if before is not None else None)
        self._owed, self._soft, self._cut_off = None, True, False
        look = self._look_in(enter.limits.soft_timeout, now)
        return [*(self._report(enter) if self._linked else self._await_link()), look]

    def _say(self, message: m.Said, now: int) -> list[c.GuardCommand]:
        if self.call is None or self.lost is not None or not self.call.hear(message):
            return []
        self._said_ns = now
        return self._report(message)

    def _tell(self, message: m.ToRank, now: int) -> list[c.GuardCommand]:
        if self.call is None or self.lost is not None or not self.call.tell(message):
            return []
        return self._pass(message, now)

    def _pass(self, message: m.ToRank, now: int) -> list[c.GuardCommand]:
        if isinstance(message, m.Record):
            self._soft = True
        self._owed, self._told_ns = message, now
        commands: list[c.GuardCommand] = [c.Pass(message)]
        if isinstance(message, m.Stop) and message.hang:
            commands.append(c.SetTimer("evidence", ANSWER_S))
        soonest = min(self._limits.soft_timeout, self._limits.hard_timeout)
        if isinstance(message, m.Dismissed):
            soonest = 0.0
        if not self._patience.looks_within(soonest, now):
            commands.append(self._look_in(soonest, now))
        return commands

    def _report(self, message: m.FromGuard) -> list[c.GuardCommand]:
        return [c.Report(message)] if self._linked else []

    # --- the link -------------------------------------------------------------------------------

    def _link_up(self, now: int) -> list[c.GuardCommand]:
        self._linked, self._cut_off = True, False
        if self.lost is not None:
            return self._report_lost()
        if self.call is None:
            return []
        return self._report(self.call.resume((now - self._said_ns) / _NS))

    def _await_link(self) -> list[c.GuardCommand]:
        """Set a limit to how long the rank goes on without a controller."""
        if self.call is None or (self.call.left and self.lost is None):
            return []
        self._downs += 1
        return [c.SetTimer(f"link {self._downs}", self._limits.heartbeat_timeout)]

    def _link_timeout(self, now: int) -> list[c.GuardCommand]:
        if self.lost is not None:
            return [c.Finish()]
        call = self.call
        if call is None or call.left:
            return []
        text = f"no controller could be reached for {self._limits.heartbeat_timeout:g} s"
        dismissed = m.Dismissed(call.enter.call, call.enter.job_rank, text)
        call.tell(dismissed)
        if call.record is None:
            call.leave(text)  # the function was not called
        self._cut_off = True
        return self._pass(dismissed, now)

    # --- the page -------------------------------------------------------------------------------

    def _bear_witness(self, look: c.Look, now: int) -> list[c.GuardCommand]:
        """Give evidence in place of a rank that has not, though it had the time."""
        asked, self._asked = self._asked, False
        call, reading = self.call, look.reading
        if not asked or call is None or call.stop is None or reading is None:
            return []
        enter, ages = call.enter, self._ages(reading, now)
        seen = hang.no_answer(enter, look.state, max(ages.auto, ages.ping or 0.0))
        epoch = call.stop.epoch
        return self._say(m.Evidence(enter.call, enter.job_rank, epoch, reading.rank, seen), now)

    def _see_off(self, reading: Reading | None) -> list[c.GuardCommand]:
        """Say that a rank that was dismissed has left, once the function does not run any more."""
        call = self.call
        if call is None or call.dismissed is None or call.record is None or self.lost is not None:
            return []
        if reading is not None and reading.phase is Phase.RUNNING:
            return []
        return self._report(call.leave(call.dismissed.text))

    def _look(self, reading: Reading | None, state: str, now: int) -> list[c.GuardCommand]:
        self._patience.looked()
        call = self.call
        if call is None or self.lost is not None or self.killed:
            return []
        limits = call.enter.limits
        if reading is None:
            return [self._look_in(limits.soft_timeout, now)]
        self._reading = reading
        if self._owed is not None and _has_done(self._owed, call, reading):
            self._owed = None
        if call.over and self._owed is None and reading.phase is Phase.OUTSIDE:
            return []  # until the next call
        soft, dismissed = self._counts(reading), call.dismissed is not None
        ages = self._ages(reading, now)
        judgement = judge(reading, ages, limits, soft=soft, dismissed=dismissed)
        look = self._look_in(judgement.look_in_s, now)
        if judgement.passed is Passed.SOFT:
            return [*self._soft_timeout(judgement.text, now), look]
        if judgement.passed is not Passed.HARD:
            return [look]
        why = f"{call.dismissed.text}; " if call.dismissed is not None else ""
        stopped = "; it was stopped by a signal" if state in hang.STOPPED else ""
        return self._end_rank(f"{why}{judgement.text}{stopped}")

    def _look_in(self, delay_s: float, now: int) -> c.LookIn:
        self._patience.expect(delay_s, now)
        return c.LookIn(delay_s)

    def _ages(self, reading: Reading, now: int) -> Ages:
        age = self._patience.age
        atomic = reading.atomic > 0 and not self._cut_off
        return Ages(
            auto=age("auto", reading.auto_ns, now),
            ping=age("ping", reading.ping_ns, now) if reading.ping_ns else None,
            atomic=age("atomic", reading.atomic_since_ns, now) if atomic else None,
            owed=age("owed", self._told_ns, now) if self._owed is not None else None,
        )

    def _counts(self, reading: Reading) -> bool:
        """Return whether the soft timeout counts: the page shows an epoch that still runs."""
        call = self.call
        if call is None or not call.running or not self._soft:
            return False
        return (reading.call, reading.epoch) == (call.enter.call, call.epoch)

    def _soft_timeout(self, text: str, now: int) -> list[c.GuardCommand]:
        self._soft = False
        assert self.call is not None
        enter = self.call.enter
        reason = self._reason("SOFT_TIMEOUT", text, f"soft timeout of {enter.job_rank}")
        return self._say(m.Fault(enter.call, enter.job_rank, self.call.epoch, reason), now)

    # --- the process ----------------------------------------------------------------------------

    def _end_rank(self, text: str) -> list[c.GuardCommand]:
        self.killed = text
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
        kind = "HARD_TIMEOUT" if self.killed else "TERMINATED"
        text = f"{self.killed}; {text}" if self.killed else text
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
        if name == "evidence":
            self._asked = True
            return [self._look_in(0.0, now)]
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
    """Return whether a rank has obeyed a message, as far as its page and its own messages show."""
    if isinstance(told, m.Record):
        up = (reading.call, reading.epoch) == (told.call, told.epoch)
        return up or bool(call.said)
    if isinstance(told, m.Stop):
        return reading.phase is Phase.RECOVERING or call.has_left(told.epoch)
    # A rank that is dismissed while it recovers must finish recovering in time as well.
    busy = reading.phase is Phase.RECOVERING and not isinstance(told, m.Dismissed)
    return reading.phase is Phase.OUTSIDE or busy
