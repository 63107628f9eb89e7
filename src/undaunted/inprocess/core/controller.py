"""The state machine of a job: its calls, and the ranks that are left to take part in them.

What happens in one call is in `call.Call`. No clock, socket or thread in here; every rank goes by
its job rank, and hears the controller by way of its guard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core.call import Call, dismiss

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# For this long, a controller that has taken over makes no record. It waits for all members that it
# knows; but the controller before may have sent a record to a process that replaces a lost rank,
# and to nobody else yet.
SETTLE_S = 1.0
# More than enough: a rank is at most one call behind the others, as no call begins without it.
_OUTCOMES_KEPT = 4


@dataclass(slots=True)
class Controller:
    """See the module's documentation. Feed events to `handle`, carry out what it returns.

    Attributes:
        calls: the calls that have not ended, by number: one, or two while quick ranks have begun
            the next one.
        gone: ranks that are lost, and why. Only a new process (`Enter.rejoin`) brings one back.
    """

    calls: dict[int, Call] = field(default_factory=dict)
    gone: dict[int, str] = field(default_factory=dict)
    _takeovers: dict[int, Takeover] = field(default_factory=dict)
    _ended: dict[int, m.Lost] = field(default_factory=dict)  # the last process of each rank
    _present: dict[int, m.Enter] = field(default_factory=dict)  # of the processes that live
    _rejoining: dict[int, m.Enter] = field(default_factory=dict)
    _waiting: dict[int, m.Join] = field(default_factory=dict)  # rejoining ranks that are ready
    _outcomes: dict[int, m.Finished | m.End] = field(default_factory=dict)
    _newest: int = -1  # number of the newest call
    _settling: bool = False  # has just taken over
    _begun: bool = False  # all ranks have had the time to enter
    _over: bool = False

    def handle(self, event: m.FromGuard | c.ControllerEvent, now: int) -> list[c.ControllerCommand]:
        """Take one event at ``now`` (monotonic, ns); return the commands it causes, in order."""
        commands = self._handle(event, now)
        commands += self._conclude_calls(now)
        return commands + self._over_if_nobody_left()

    def _handle(
        self, event: m.FromGuard | c.ControllerEvent, now: int
    ) -> list[c.ControllerCommand]:
        match event:
            case m.Enter():
                return self._enter(event, now)
            case m.Join() | m.Fault() | m.Completed() | m.Evidence() | m.Leave():
                return self._say(event, now)
            case m.Lost():
                return self._lost(event, now)
            case c.Unreachable(job_ranks=job_ranks, text=text):
                return self._lose([m.Reason("UNRESPONSIVE", j, text=text) for j in job_ranks], now)
            case m.Resume():
                return self._resume(event, now)
            case c.TimerFired(name=name):
                return self._timer(name, now)

    # --- ranks enter ----------------------------------------------------------------------------

    def _enter(self, enter: m.Enter, now: int) -> list[c.ControllerCommand]:
        job_rank, number = enter.job_rank, enter.call
        refusal = refusal_of(enter)
        if refusal:
            return [c.Answer(m.Dismissed(number, job_rank, refusal))]
        if enter.rejoin:
            return self._rejoin(enter, now)
        contradiction = self._contradiction(enter)
        if contradiction:
            return [c.Answer(m.End(number, "mismatch", contradiction))]
        self._present.setdefault(job_rank, enter)
        if job_rank in self.gone:
            return [dismiss(number, job_rank, f"it counts as lost: {self.gone[job_rank]}")]
        commands = self._moved_on(job_rank, number, now)
        takeover = self._takeovers.get(number)
        if takeover is not None:
            takeover.resumes.setdefault(job_rank, m.Resume(enter, None, None, ()))
            return commands
        call = self.calls.get(number)
        if call is not None:
            return commands + call.come(enter)
        if number <= self._newest:
            return commands + self._too_late(enter)
        return commands + self._begin(enter, now)

    def _contradiction(self, enter: m.Enter) -> str:
        """Return why a process is none of this job's, "" = it may be. The first comer stays."""
        known = self._present.get(enter.job_rank)
        if known is not None and not _are_one(known, enter):
            return (
                f"process {known.pid} on {known.node} is rank {enter.job_rank} of this job; "
                f"process {enter.pid} on {enter.node} says that it is, too: {_REMEDY}"
            )
        first = next(iter(self._present.values()), enter)
        if first.world_size != enter.world_size:
            return (
                f"rank {first.job_rank} says that the job has {first.world_size} ranks, rank "
                f"{enter.job_rank} says {enter.world_size}: {_REMEDY}"
            )
        return ""

    def _begin(self, enter: m.Enter, now: int) -> list[c.ControllerCommand]:
        members = set(range(enter.world_size)) - self.gone.keys()
        call = self.calls[enter.call] = Call(enter, self._waiting, members, now, self._settling)
        self._newest, self._begun = max(self._newest, enter.call), True
        return call.begin() + call.come(enter)

    def _too_late(self, enter: m.Enter) -> list[c.ControllerCommand]:
        outcome = self._outcomes.get(enter.call)
        if isinstance(outcome, m.End):
            return [c.Tell((enter.job_rank,), outcome)]
        return [dismiss(enter.call, enter.job_rank, "the call is over for the other ranks")]

    def _rejoin(self, enter: m.Enter, now: int) -> list[c.ControllerCommand]:
        """A process takes the place of a lost one, perhaps before the loss is known here."""
        job_rank = enter.job_rank
        commands: list[c.ControllerCommand] = []
        if job_rank not in self.gone:
            text = "another process has taken its place"
            commands = self._lose([m.Reason("TERMINATED", job_rank, text=text)], now)
        self._present[job_rank] = self._rejoining[job_rank] = enter
        return [*commands, c.SetTimer("begun 0 0", enter.limits.heartbeat_timeout)]

    def _moved_on(self, job_rank: int, number: int, now: int) -> list[c.ControllerCommand]:
        """A rank that enters a call has left every earlier one."""
        text = "it has called a wrapped function again"
        reason = m.Reason("BASE_EXCEPTION", job_rank, text=text)
        commands: list[c.ControllerCommand] = []
        for call in [each for each in self.calls.values() if each.number < number]:
            commands += call.lose((reason,), now)
        for earlier in [each for each in self._takeovers if each < number]:
            self._takeovers[earlier].lose(reason)
            commands += self._resume_if_all_back(earlier, now)
        return commands

    # --- ranks speak ------------------------------------------------------------------------------

    def _say(self, said: m.Said, now: int) -> list[c.ControllerCommand]:
        if said.job_rank in self._rejoining:
            return self._say_rejoining(said, now)
        takeover = self._takeovers.get(said.call)
        if takeover is not None:
            takeover.hear(said)
            return []
        call = self.calls.get(said.call)
        return [] if call is None else call.hear(said, now)

    def _say_rejoining(self, said: m.Said, now: int) -> list[c.ControllerCommand]:
        if isinstance(said, m.Join):
            self._waiting[said.job_rank] = said
        elif isinstance(said, m.Leave):
            return self._lose([said.reason], now)
        return []

    # --- ranks go ---------------------------------------------------------------------------------

    def _lost(self, lost: m.Lost, now: int) -> list[c.ControllerCommand]:
        present = self._present.get(lost.job_rank)
        if lost.pid and present is not None and lost.pid != present.pid:
            return []  # of the process before
        commands = self._lose([about(lost.job_rank, lost.reason)], now, lost.call)
        self._ended[lost.job_rank] = lost
        return commands

    def _lose(
        self, reasons: Iterable[m.Reason], now: int, newest: float = math.inf
    ) -> list[c.ControllerCommand]:
        """Ranks are gone. Their processes knew no call after ``newest``: later ones are others'."""
        reasons = tuple(reasons)
        for reason in reasons:
            job_rank = reason.job_rank
            self.gone[job_rank] = reason.text or reason.kind
            self._present.pop(job_rank, None)
            self._rejoining.pop(job_rank, None)
            self._waiting.pop(job_rank, None)
        commands: list[c.ControllerCommand] = []
        for call in list(self.calls.values()):
            commands += call.lose(reasons, now)
        for number in [each for each in self._takeovers if each <= newest]:
            for reason in reasons:
                self._takeovers[number].lose(reason)
            commands += self._resume_if_all_back(number, now)
        return commands

    def _conclude_calls(self, now: int) -> list[c.ControllerCommand]:
        """Forget calls that are over, but keep their outcomes."""
        commands: list[c.ControllerCommand] = []
        for number in [each for each, call in self.calls.items() if call.over]:
            call = self.calls.pop(number)
            if call.outcome is not None:
                self._remember(call.outcome)
            if isinstance(call.outcome, m.Finished):
                commands += self._leave_behind(call.out, now)
        self._take_in()
        return commands

    def _take_in(self) -> None:
        """A process that replaces a lost one, once it is a member, is a rank like any other."""
        for call in self.calls.values():
            for job_rank in self._rejoining.keys() & call.members:
                enter = self._rejoining.pop(job_rank)
                call.entered[job_rank] = msgspec.structs.replace(enter, call=call.number)
                self.gone.pop(job_rank, None)

    def _leave_behind(self, out: dict[int, str], now: int) -> list[c.ControllerCommand]:
        """The others have finished without these ranks: no later call waits for them."""
        commands: list[c.ControllerCommand] = []
        for job_rank, text in out.items():
            if job_rank in self.gone:
                continue
            self.gone[job_rank] = text
            for call in list(self.calls.values()):
                if job_rank in call.entered:
                    commands.append(dismiss(call.number, job_rank, f"it counts as lost: {text}"))
                commands += call.lose((m.Reason("TERMINATED", job_rank, text=text),), now)
        return commands

    def _remember(self, outcome: m.Finished | m.End) -> None:
        self._outcomes[outcome.call] = outcome
        self._newest = max(self._newest, outcome.call)
        while len(self._outcomes) > _OUTCOMES_KEPT:
            del self._outcomes[min(self._outcomes)]

    def _over_if_nobody_left(self) -> list[c.ControllerCommand]:
        """When only processes that wait to rejoin are left: dismiss them, nobody can be joined."""
        if self.calls or self._takeovers or not self._begun:
            return []
        if self._present.keys() - self._rejoining.keys() - self.gone.keys():
            return []
        finished = isinstance(self._outcomes.get(self._newest), m.Finished)
        text = "the others had finished before it" if finished else "no rank is left that it"
        commands = [
            dismiss(enter.call, job_rank, f"{text} could join", finished=finished)
            for job_rank, enter in self._rejoining.items()
        ]
        self._rejoining.clear()
        self._waiting.clear()
        if self._over or self._present:
            return commands
        self._over = True
        return [*commands, c.Over()]

    # --- a controller that has taken over, and links that were broken ---------------------------

    def _resume(self, resume: m.Resume, now: int) -> list[c.ControllerCommand]:
        enter = resume.enter
        job_rank, number = enter.job_rank, enter.call
        present = self._present.get(job_rank, enter)
        if not enter.rejoin and present.rejoin and not _are_one(present, enter):
            return []  # of the process before
        contradiction = self._contradiction(enter)
        if contradiction and not enter.rejoin:
            return [c.Answer(m.End(number, "mismatch", contradiction))]
        if enter.rejoin and resume.record is None:
            return self._resume_rejoining(resume, now)
        ended = self._ended.get(job_rank)
        if enter.rejoin and ended is not None and ended.pid != enter.pid:
            self.gone.pop(job_rank, None)  # that was the process before
        refusal = refusal_of(enter) or self.gone.get(job_rank, "")
        if refusal:
            return [dismiss(number, job_rank, f"it counts as lost: {refusal}")]
        self._present[job_rank] = enter
        commands = self._settle_if_new(resume) + self._learn_outcome(resume)
        outcome = self._outcomes.get(number)
        if outcome is not None:
            return commands + (tell_outcome(outcome, [job_rank]) if outcome != resume.ended else [])
        commands += self._moved_on(job_rank, number, now)
        takeover = self._takeovers.get(number)
        call = self.calls.get(number)
        if takeover is None and resume.record is not None and (call is None or not call.record):
            takeover = self._take_over(number, call)
            limit_s = enter.limits.unreachable_s()
            commands.append(c.SetTimer(f"resume {number} 0", limit_s))
        if takeover is not None:
            takeover.add(resume)
            return commands + self._resume_if_all_back(number, now)
        return commands + self._return(call, resume, now)

    def _settle_if_new(self, resume: m.Resume) -> list[c.ControllerCommand]:
        """Notice that this controller has taken over: a rank has a past that is unknown here."""
        knows = self._outcomes or any(call.record for call in self.calls.values())
        if self._settling or self._takeovers or knows:
            return []
        if resume.record is None and resume.ended is None:
            return []
        self._settling = True
        for call in self.calls.values():
            call.held = True
        return [c.SetTimer("settled 0 0", SETTLE_S)]

    def _settled(self, now: int) -> list[c.ControllerCommand]:
        self._settling = False
        commands: list[c.ControllerCommand] = []
        for call in list(self.calls.values()):
            commands += call.release(now)
        return commands

    def _resume_rejoining(self, resume: m.Resume, now: int) -> list[c.ControllerCommand]:
        """A process that replaces a lost one; it may be a member and not know it yet."""
        enter = resume.enter
        for call in self.calls.values():
            known = call.entered.get(enter.job_rank)
            if enter.job_rank in call.members and known is not None and known.pid == enter.pid:
                return call.catch_up(resume, now)
        commands = self._enter(enter, now)
        for said in resume.said:
            commands += self._say(said, now)
        return commands

    def _learn_outcome(self, resume: m.Resume) -> list[c.ControllerCommand]:
        """The controller before has ended a call for one rank: the outcome holds for all ranks."""
        outcome = resume.ended
        if outcome is None or outcome.call in self._outcomes:
            return []
        self._remember(outcome)
        if isinstance(outcome, m.Finished):
            others = set(range(resume.enter.world_size)) - {*outcome.members}
            self.gone |= dict.fromkeys(others - self.gone.keys(), "the others went on without it")
        call = self.calls.pop(outcome.call, None)
        takeover = self._takeovers.pop(outcome.call, None)
        ranks = {*(call.entered if call else ()), *(takeover.resumes if takeover else ())}
        return tell_outcome(outcome, sorted(ranks))

    def _take_over(self, number: int, call: Call | None) -> Takeover:
        takeover = self._takeovers[number] = Takeover()
        self._newest, self._begun = max(self._newest, number), True
        for lost in self._ended.values():
            if lost.job_rank in self.gone and lost.call >= number:
                takeover.lose(about(lost.job_rank, lost.reason))
        if call is not None:  # begun by ranks that had not been told of any record yet
            del self.calls[number]
            for job_rank, enter in call.entered.items():
                join = call.joins.get(job_rank)
                takeover.add(m.Resume(enter, None, None, () if join is None else (join,)))
        return takeover

    def _return(self, call: Call | None, resume: m.Resume, now: int) -> list[c.ControllerCommand]:
        """A guard whose link was broken is back, with this rank."""
        enter = resume.enter
        commands = []
        if call is None or enter.job_rank not in call.entered:
            commands = self._enter(enter, now)
            call = self.calls.get(enter.call)
        if call is not None and enter.job_rank in call.entered:
            commands += call.catch_up(resume, now)
        for said in resume.said:
            commands += self._say(said, now)
        return commands + (call.waits(resume, now) if call is not None else [])

    def _resume_if_all_back(self, number: int, now: int) -> list[c.ControllerCommand]:
        takeover = self._takeovers.get(number)
        if takeover is None or takeover.missing or not takeover.resumes:
            return []
        return self._go_on(number, now)

    def _go_on(self, number: int, now: int) -> list[c.ControllerCommand]:
        """Go on with a call: repeat messages that the controller before has not sent to all."""
        takeover = self._takeovers.pop(number)
        record, stop = takeover.record, takeover.stop
        assert record is not None
        resumes = [takeover.resumes[each] for each in sorted(takeover.resumes)]
        enters = {each.enter.job_rank: each.enter for each in resumes}
        call = Call(resumes[0].enter, self._waiting, set(), now, self._settling)
        call.restore(record, enters)
        self.calls[number] = call
        commands: list[c.ControllerCommand] = [
            c.Note("resumed", number, record.epoch, record.members)
        ]
        for resume in resumes:
            commands += call.catch_up(resume, now)
        if stop is not None and not call.over:
            commands += call.interrupt(stop.reasons, now)
        commands += call.lose(takeover.lost.values(), now)
        for resume in resumes:
            for said in resume.said:
                commands += call.hear(said, now)
            commands += call.waits(resume, now)
        return commands

    # --- timers ---------------------------------------------------------------------------------

    def _timer(self, name: str, now: int) -> list[c.ControllerCommand]:
        what, number, epoch = name.split()
        if what == "resume":
            return self._resume_timeout(int(number), now)
        if what == "settled":
            return self._settled(now)
        if what == "begun":
            self._begun = True
            return []
        call = self.calls.get(int(number))
        return [] if call is None else call.timer(what, int(epoch), now)

    def _resume_timeout(self, number: int, now: int) -> list[c.ControllerCommand]:
        takeover = self._takeovers.get(number)
        if takeover is None:
            return []
        text = "it has not come back to a new controller in time (heartbeat_timeout)"
        reasons = [m.Reason("UNRESPONSIVE", each, text=text) for each in sorted(takeover.missing)]
        for reason in reasons:
            takeover.lose(reason)
        return self._lose([each for each in reasons if each.job_rank not in self._rejoining], now)


@dataclass(slots=True)
class Takeover:
    """A call that began under another controller, as the guards of its ranks report it.

    The highest record that any rank has heard is the last one that was made: no rank can have
    joined a later epoch without it. All its members are waited for; then the call goes on from it.

    Attributes:
        resumes: what the guards have said about their ranks, by job rank.
        lost: ranks that do not come any more, and why.
    """

    resumes: dict[int, m.Resume] = field(default_factory=dict)
    lost: dict[int, m.Reason] = field(default_factory=dict)

    @property
    def record(self) -> m.Record | None:
        """The highest record that any rank has heard; None = no rank has heard one."""
        records = [each.record for each in self.resumes.values() if each.record is not None]
        return max(records, key=lambda record: record.epoch, default=None)

    @property
    def missing(self) -> set[int]:
        """Members of `record` that no guard has reported yet."""
        record = self.record
        members = set() if record is None else set(record.members)
        return members - self.resumes.keys() - self.lost.keys()

    @property
    def stop(self) -> m.Stop | None:
        """The stop of the epoch of `record`; None = no rank has heard one."""
        record = self.record
        stops = (each.stop for each in self.resumes.values() if each.record == record)
        return next((stop for stop in stops if stop is not None), None)

    def add(self, resume: m.Resume) -> None:
        """A guard reports a rank."""
        self.resumes[resume.enter.job_rank] = resume

    def hear(self, message: m.Said) -> None:
        """A rank that was reported says something more."""
        known = self.resumes.get(message.job_rank)
        if known is not None:
            said = (*known.said, message)
            self.resumes[message.job_rank] = msgspec.structs.replace(known, said=said)

    def lose(self, reason: m.Reason) -> None:
        """A rank is gone."""
        self.lost[reason.job_rank] = reason


_MAX_WORLD_SIZE = 1 << 20
_REMEDY = "give each job another MASTER_PORT"


def _are_one(enter: m.Enter, other: m.Enter) -> bool:
    """Return whether one process has said both."""
    return (enter.pid, enter.node) == (other.pid, other.node)


def tell_outcome(
    outcome: m.Finished | m.End, job_ranks: Sequence[int]
) -> list[c.ControllerCommand]:
    """Tell ranks the outcome of a call; dismiss ranks that were no members at its end."""
    part, rest = job_ranks, []
    if isinstance(outcome, m.Finished):
        part = [each for each in job_ranks if each in outcome.members]
        rest = [each for each in job_ranks if each not in outcome.members]
    told: list[c.ControllerCommand] = [c.Tell(tuple(part), outcome)] if part else []
    return told + [dismiss(outcome.call, each, "the others went on without it") for each in rest]


def about(job_rank: int, reason: m.Reason) -> m.Reason:
    """Return the reason with this rank in ``job_rank``."""
    if reason.job_rank == job_rank:
        return reason
    return msgspec.structs.replace(reason, job_rank=job_rank)


def refusal_of(enter: m.Enter) -> str:
    """Return why the message by itself is not acceptable, "" = it is."""
    if enter.version != m.VERSION:
        return (
            f"it speaks version {enter.version} of the messages, the controller {m.VERSION}; "
            "install the same version everywhere"
        )
    if not 0 <= enter.job_rank < enter.world_size <= _MAX_WORLD_SIZE:
        return f"rank {enter.job_rank} of {enter.world_size} is impossible"
    return ""
