"""One call of a wrapped function in all ranks: from the first record to its end.

States, as in docs/design/inprocess.md::

    GATHERING  epoch e: waits for the members' joins, then publishes the record
    RUNNING    epoch e
    OVER       has an outcome, or nobody is left
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core import hang
from undaunted.inprocess.core import messages as m

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_NS = 1_000_000_000
# When thousands of ranks fail because one has failed, the first reasons are enough.
MAX_REASONS = 64
MAX_TEXT = 1000  # characters
_LONGEST_PAUSE_S = 5.0  # before a function that fails at once is called again


class CallState(enum.Enum):
    """See the module's documentation."""

    GATHERING = enum.auto()
    RUNNING = enum.auto()
    OVER = enum.auto()


@dataclass(slots=True)
class Streak:
    """Counts how often in a row the same fault comes, without progress of any rank in between."""

    _count: int = 0
    _fingerprints: frozenset[str] = frozenset()
    _progress: dict[int, int] = field(default_factory=dict)

    def add(
        self, reasons: tuple[m.Reason, ...], joins: Collection[m.Join], *, long: bool = False
    ) -> int:
        """Count the stop of an epoch; return how often in a row the fault has come.

        Args:
            reasons: of the stop.
            joins: of the ranks, with their progress.
            long: the epoch has run long enough to count as progress.
        """
        progress = {join.job_rank: join.progress for join in joins}
        known = self._progress
        moved = long or any(
            count > known.get(job_rank, count) for job_rank, count in progress.items()
        )
        self._progress = progress
        fingerprints = frozenset(each.fingerprint for each in reasons if each.fingerprint)
        same = fingerprints & self._fingerprints
        if same and not moved:
            self._count += 1
            self._fingerprints = same
        else:
            self._count = 1 if fingerprints else 0
            self._fingerprints = fingerprints
        return self._count


@dataclass(slots=True)
class Call:
    """See the module's documentation. Every method returns what the controller is to do.

    Attributes:
        enter: the first message of its first rank: number, world size, limits.
        waiting: joins of processes that take the place of lost ranks, for the next record. Belongs
            to the controller; emptied here.
        members: ranks that take part in the epoch that runs or is gathered; while epoch 0 is
            gathered, all ranks that are expected.
        began_ns: when the epoch began to run or to be gathered.
        held: no record is made yet, as there may be ranks that are not known here.
        entered: first messages of the ranks that have entered.
        out: ranks that take no part any more, and why.
        record: the last record that was made.
        stop: the stop of its epoch, None = the epoch runs.
        outcome: how the call has ended, None = it has not.
    """

    enter: m.Enter
    waiting: dict[int, m.Join]
    members: set[int]
    began_ns: int
    held: bool = False
    state: CallState = CallState.GATHERING
    entered: dict[int, m.Enter] = field(default_factory=dict)
    out: dict[int, str] = field(default_factory=dict)
    record: m.Record | None = None
    stop: m.Stop | None = None
    outcome: m.Finished | m.End | None = None
    _joins: dict[int, m.Join] = field(default_factory=dict)
    _late: set[int] = field(default_factory=set)  # members that were dismissed, and are to leave
    _reasons: tuple[m.Reason, ...] = ()
    _completed: set[int] = field(default_factory=set)
    _returned: bool = False  # the function has returned in one of these
    _returned_ns: int = 0  # when it did first
    _streak: Streak = field(default_factory=Streak)
    _pauses: bool = False  # all have joined, and the fault was the one before
    _last: int = -1  # the rank that has joined last
    _ran_s: float = 0.0  # how long the epoch ran that was stopped
    _evidence: dict[int, m.Evidence] = field(default_factory=dict)  # of a hang
    _unnoted: c.Note | None = None  # of its stop, until it is known who hangs
    _waiting_for_others: frozenset[int] = frozenset()  # the ranks that are not to blame for it

    @property
    def number(self) -> int:
        """The number of the call."""
        return self.enter.call

    @property
    def epoch(self) -> int:
        """The epoch that runs or is gathered."""
        if self.record is None:
            return 0
        return self.record.epoch + (self.stop is not None)

    @property
    def over(self) -> bool:
        """Return whether the call has ended."""
        return self.state is CallState.OVER

    @property
    def joins(self) -> Mapping[int, m.Join]:
        """The ranks that are ready for the epoch that is gathered."""
        return self._joins

    # --- what ranks say -------------------------------------------------------------------------

    def begin(self) -> list[c.ControllerCommand]:
        """The first command of a new call."""
        return [self._barrier_timer()]

    def come(self, enter: m.Enter) -> list[c.ControllerCommand]:
        """A rank has entered."""
        job_rank = enter.job_rank
        if job_rank not in self.members:
            return [dismiss(self.number, job_rank, self.out.get(job_rank, "it is no member"))]
        self.entered[job_rank] = enter
        return []

    def hear(self, said: m.Said, now: int) -> list[c.ControllerCommand]:
        """A rank says something; late and repeated messages change nothing."""
        if self.over or said.job_rank not in self.members:
            return []
        match said:
            case m.Join():
                return self._join(said, now)
            case m.Fault():
                return self._fault(said, now)
            case m.Completed():
                return self._complete(said, now)
            case m.Evidence():
                return self._give_evidence(said)
            case m.Leave():
                return self._leave(said, now)

    def _join(self, join: m.Join, now: int) -> list[c.ControllerCommand]:
        job_rank = join.job_rank
        gathered = self.state is CallState.GATHERING and join.epoch == self.epoch
        if not gathered or job_rank in self._joins or job_rank in self._late:
            return []
        self._joins[job_rank] = join
        self._last = job_rank
        return self._gather(now)

    def _fault(self, fault: m.Fault, now: int) -> list[c.ControllerCommand]:
        """Stop the epoch that runs, or add a reason to the stop of the one that is over."""
        if self.record is None or fault.epoch != self.record.epoch:
            return []
        return self.interrupt((fault.reason,), now)

    def _give_evidence(self, evidence: m.Evidence) -> list[c.ControllerCommand]:
        if self._unnoted is None or evidence.epoch != self._unnoted.epoch:
            return []
        self._evidence[evidence.job_rank] = evidence
        return self._note_if_all_seen()

    def _complete(self, completed: m.Completed, now: int) -> list[c.ControllerCommand]:
        if self.state is not CallState.RUNNING or completed.epoch != self.epoch:
            return []
        first = not self._returned and not completed.reserve
        if first:
            self._returned, self._returned_ns = True, now
        self._completed.add(completed.job_rank)
        timer = [self._completion_timer()] if first else []
        return timer + self._finish_if_all_completed(now)

    def _leave(self, leave: m.Leave, now: int) -> list[c.ControllerCommand]:
        if not leave.discarded:
            return self.lose((leave.reason,), now)
        self._count_out(leave.reason)
        if not self.members:
            return self._abandon()
        if self.state is CallState.GATHERING:
            return self._gather(now)
        return self._finish_if_all_completed(now)

    def lose(self, reasons: Iterable[m.Reason], now: int) -> list[c.ControllerCommand]:
        """Ranks are gone."""
        if self.over:
            return []
        lost = tuple(each for each in reasons if each.job_rank in self.members)
        for reason in lost:
            self._count_out(reason)
        if not lost:
            return []
        return self.interrupt(lost, now) if self.members else self._abandon()

    def interrupt(self, reasons: tuple[m.Reason, ...], now: int) -> list[c.ControllerCommand]:
        """Stop the epoch; if it is stopped already, add reasons to the next record."""
        self._reasons = add_reasons(self._reasons, map(self._ordered, reasons))
        if self.state is CallState.GATHERING:
            return self._gather(now)
        assert self.record is not None
        self.stop = m.Stop(self.number, self.record.epoch, self._reasons)
        self.state = CallState.GATHERING
        members = tuple(sorted(self.members))
        took_s = self._ran_s = (now - self.began_ns) / _NS
        self.began_ns = now
        self._unnoted = c.Note(
            "stopped", self.number, self.record.epoch, members, self._reasons, took_s=took_s
        )
        note = [] if self.stop.hang else self._note_stop()
        return [c.Tell(members, self.stop), self._barrier_timer(), *note]

    def release(self, now: int) -> list[c.ControllerCommand]:
        """All ranks are known: from now on records may be made."""
        self.held = False
        return self._gather(now) if self.members else []

    def timer(self, what: str, epoch: int, now: int) -> list[c.ControllerCommand]:
        """A timer has run out."""
        if self.over or epoch != self.epoch:
            return []
        if what == "pause" and self._pauses:
            self._pauses = False
            return self._make_record(now)
        if what == "barrier" and self._pauses:
            return []  # all have joined
        if what == "barrier" and self.state is CallState.GATHERING:
            return self._barrier_timeout()
        if what == "completion" and self.state is CallState.RUNNING:
            return self._completion_timeout(now)
        return []

    def end(self, kind: str, text: str) -> list[c.ControllerCommand]:
        """End the call in all ranks, as it cannot go on."""
        end = m.End(self.number, kind, text)
        told = sorted({*self.members.intersection(self.entered), *self.waiting})
        self.waiting.clear()
        note = c.Note("ended", self.number, self.epoch, reasons=self._reasons, text=text)
        return [*self._conclude(end, told), note]

    # --- guards that come back ------------------------------------------------------------------

    def catch_up(self, resume: m.Resume, now: int) -> list[c.ControllerCommand]:
        """Tell a rank whose guard has come back the record and the stop that it has not heard."""
        job_rank, heard, record = resume.enter.job_rank, resume.record, self.record
        if job_rank not in self.members:
            return [dismiss(self.number, job_rank, self.out.get(job_rank, "it is no member"))]
        if _contradict(heard, record):
            text = "it was told another record than the others"
            lost = self.lose([m.Reason("UNRESPONSIVE", job_rank, text=text)], now)
            return [dismiss(self.number, job_rank, text), *lost]
        commands: list[c.ControllerCommand] = []
        if record is not None and heard != record:
            commands.append(c.Tell((job_rank,), record))
        if self.stop is not None:
            commands.append(c.Tell((job_rank,), self.stop))
        return commands + ([self._dismiss_late(job_rank)] if job_rank in self._late else [])

    def waits(self, resume: m.Resume, now: int) -> list[c.ControllerCommand]:
        """A rank has waited since before this controller knew of it: its limit counts from then."""
        last = resume.said[-1] if resume.said else None
        since_ns = now - round(resume.waited_s * _NS)
        if last is None or last.epoch != self.epoch:
            return []
        gathered = self.state is CallState.GATHERING and isinstance(last, m.Join)
        if gathered and since_ns < self.began_ns:
            self.began_ns = since_ns
            return [self._barrier_timer(resume.waited_s)]
        if self._returned and isinstance(last, m.Completed) and since_ns < self._returned_ns:
            self._returned_ns = since_ns
            return [self._completion_timer(resume.waited_s)]
        return []

    def restore(self, record: m.Record, enters: Mapping[int, m.Enter]) -> None:
        """Go on from the last record of a controller that is gone."""
        self.record, self.state = record, CallState.RUNNING
        self.members = set(record.members)
        self.entered = dict(enters)
        everybody = {*range(self.enter.world_size), *enters}
        self.out = dict.fromkeys(everybody - self.members, "it is no member of the last epoch")

    # --- leaves ---------------------------------------------------------------------------------

    def _count_out(self, reason: m.Reason) -> None:
        job_rank = reason.job_rank
        self.members.discard(job_rank)
        self._joins.pop(job_rank, None)
        self._late.discard(job_rank)
        self._completed.discard(job_rank)
        self.out[job_rank] = reason.text or reason.kind

    def _gather(self, now: int) -> list[c.ControllerCommand]:
        return [*self._note_if_all_seen(), *self._record_if_all_joined(now)]

    def _note_if_all_seen(self) -> list[c.ControllerCommand]:
        """Note the stop for a hang when no rank is left that may say what it does."""
        if self.members - self._evidence.keys() - self._joins.keys():
            return []
        return self._note_stop()

    def _note_stop(self) -> list[c.ControllerCommand]:
        note, self._unnoted = self._unnoted, None
        if note is None:
            return []
        first, self._waiting_for_others = hang.blame(self._evidence.values())
        if first is not None:
            others = (each for each in self._reasons if not _about_hang_of(first, each))
            self._reasons = add_reasons((first,), map(self._ordered, others))
        return [msgspec.structs.replace(note, reasons=self._reasons)]

    def _ordered(self, reason: m.Reason) -> m.Reason:
        """A rank whose limit has passed while it waited for another one is no cause."""
        waits = reason.job_rank in self._waiting_for_others
        if reason.kind != m.SOFT_TIMEOUT or not waits:
            return reason
        text = f"it waits for another rank: {reason.text}"
        return msgspec.structs.replace(reason, text=text, consequence=True, fingerprint="")

    def _record_if_all_joined(self, now: int) -> list[c.ControllerCommand]:
        if self.held or self._pauses or self.state is not CallState.GATHERING:
            return []
        if not self.members <= self._joins.keys():
            return []
        long = self._ran_s >= self.enter.limits.soft_timeout
        times = self._streak.add(self._reasons, self._joins.values(), long=long)
        if 0 < self.enter.repeats <= times:
            text = f"the same fault {times} times in a row, without progress (max_identical_faults)"
            return self.end("abort", f"{text}: {self._reasons[0].text or self._reasons[0].kind}")
        if times > 1 and self.enter.repeats:
            self._pauses = True
            longest = min(_LONGEST_PAUSE_S, self.enter.limits.barrier_timeout / 4)
            return [self._timer("pause", min(2.0 ** min(times - 2, 8), longest))]
        return self._make_record(now)

    def _make_record(self, now: int) -> list[c.ControllerCommand]:
        try:
            record = make_record(
                self.number,
                self.epoch,
                self._joins,
                self.waiting,
                self._reasons,
            )
        except ContradictionError as contradiction:
            return self.end("mismatch", str(contradiction))
        return self._publish(record, now)

    def _publish(self, record: m.Record, now: int) -> list[c.ControllerCommand]:
        self.record, self.stop, self.state = record, None, CallState.RUNNING
        self.members = set(record.members)
        for job_rank in self.waiting:
            self.out.pop(job_rank, None)
        phases = slowest(self._joins.values())
        took_s, self.began_ns = (now - self.began_ns) / _NS, now
        note = c.Note(
            "recorded",
            self.number,
            record.epoch,
            record.members,
            record.reasons,
            took_s=took_s,
            last=self._last,
            phases=phases,
        )
        self._joins.clear()
        self.waiting.clear()
        self._completed.clear()
        self._returned = False
        self._reasons = ()
        self._evidence.clear()
        self._waiting_for_others = frozenset()
        return [c.Tell(record.members, record), note]

    def _finish_if_all_completed(self, now: int) -> list[c.ControllerCommand]:
        if not self.members <= self._completed:
            return []
        note = c.Note("finished", self.number, self.epoch, took_s=(now - self.began_ns) / _NS)
        finished = m.Finished(self.number, self.epoch, tuple(sorted(self.members)))
        return [*self._conclude(finished, finished.members), note]

    def _conclude(
        self, outcome: m.Finished | m.End, told: Iterable[int]
    ) -> list[c.ControllerCommand]:
        self.outcome, self.state = outcome, CallState.OVER
        return [c.Tell(tuple(told), outcome)]

    def _abandon(self) -> list[c.ControllerCommand]:
        self.outcome, self.state = m.End(self.number, "abort", "no rank is left"), CallState.OVER
        ended = c.Note("ended", self.number, self.epoch, text=self.outcome.text)
        return [*self._note_stop(), ended]

    # --- timers ---------------------------------------------------------------------------------

    def _timer(self, what: str, delay_s: float) -> c.ControllerCommand:
        return c.SetTimer(f"{what} {self.number} {self.epoch}", delay_s)

    def _barrier_timer(self, waited_s: float = 0.0) -> c.ControllerCommand:
        return self._timer("barrier", max(0.0, self.enter.limits.barrier_timeout - waited_s))

    def _completion_timer(self, waited_s: float = 0.0) -> c.ControllerCommand:
        return self._timer("completion", max(0.0, self.enter.limits.completion_timeout - waited_s))

    def _barrier_timeout(self) -> list[c.ControllerCommand]:
        """Dismiss the ranks that are missing. They count until their guards say that they left.

        The function may still run in one of them: no other rank may be in the next epoch by then.
        """
        missing = sorted(self.members - self._joins.keys())
        if self.epoch == 0:
            names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            text = f"{len(missing)} of {self.enter.world_size} ranks have not come {self._within}"
            return self.end("barrier", f"{text}: {names}")
        self._late.update(missing)
        return [self._dismiss_late(job_rank) for job_rank in missing]

    def _dismiss_late(self, job_rank: int) -> c.ControllerCommand:
        text = f"it has not joined epoch {self.epoch} {self._within}"
        return dismiss(self.number, job_rank, text)

    @property
    def _within(self) -> str:
        return f"within {self.enter.limits.barrier_timeout:g} s (barrier_timeout)"

    def _completion_timeout(self, now: int) -> list[c.ControllerCommand]:
        limit_s = self.enter.limits.completion_timeout
        text = f"it has not completed {limit_s:g} s after the first rank (completion_timeout)"
        late = sorted(self.members - self._completed)
        reasons = tuple(m.Reason("UNRESPONSIVE", each, text=text) for each in late)
        return self.interrupt(reasons, now)


def _about_hang_of(first: m.Reason, reason: m.Reason) -> bool:
    return (reason.kind, reason.job_rank) == (first.kind, first.job_rank)


def _contradict(heard: m.Record | None, record: m.Record | None) -> bool:
    """Return whether a rank has heard a record that does not fit this controller's last one."""
    if heard is None:
        return False
    if record is None or heard.epoch > record.epoch:
        return True
    return heard.epoch == record.epoch and heard != record


class ContradictionError(Exception):
    """The ranks' statements about themselves contradict each other. The message is for people."""


def make_record(
    call: int,
    epoch: int,
    joins: Mapping[int, m.Join],
    waiting: Mapping[int, m.Join],
    reasons: tuple[m.Reason, ...] = (),
) -> m.Record:
    """Make the record of an epoch.

    Args:
        call: its call.
        epoch: its number.
        joins: of the members, by job rank.
        waiting: joins of processes that take the place of lost ranks, by job rank.
        reasons: why the epoch before was stopped.

    Raises:
        ContradictionError: the joins contradict each other about the ranks of the epoch before.
    """
    size, ranks = _ranks(epoch, joins)
    free = [rank for rank in range(size) if rank not in ranks]
    joined: dict[int, int] = {}
    for job_rank in sorted(waiting):
        if free:
            joined[job_rank] = free.pop(0)
        else:
            joined[job_rank] = size
            size += 1
    everybody = {**joins, **waiting}
    rank_of = {job_rank: rank for rank, job_rank in ranks.items()} | joined
    members = tuple(sorted(everybody))
    stores = (everybody[job_rank].store for job_rank in members)
    info = {rank_of[each]: everybody[each].info for each in members}
    return m.Record(
        call=call,
        epoch=epoch,
        members=members,
        world_size=size,
        terminated=tuple(free),
        joined=joined,
        reasons=tuple(_with_rank(reason, rank_of) for reason in reasons),
        store=next((store for store in stores if store), ""),
        info={rank: what for rank, what in sorted(info.items()) if what is not None},
    )


def _ranks(epoch: int, joins: Mapping[int, m.Join]) -> tuple[int, dict[int, int]]:
    """Return the world size and the job rank of every rank, both of the epoch before."""
    size = next(iter(joins.values())).world_size
    ranks: dict[int, int] = {}
    for job_rank, join in sorted(joins.items()):
        if join.world_size != size:
            raise ContradictionError(
                f"job rank {job_rank} says that epoch {epoch} begins with {join.world_size} ranks, "
                f"others say {size}"
            )
        if not 0 <= join.rank < size:
            raise ContradictionError(
                f"job rank {job_rank} says that it is rank {join.rank} of {size}"
            )
        other = ranks.setdefault(join.rank, job_rank)
        if other != job_rank:
            raise ContradictionError(
                f"job ranks {other} and {job_rank} both say that they are rank {join.rank}; rank "
                "assignments must give every rank its own"
            )
    return size, ranks


def _with_rank(reason: m.Reason, rank_of: Mapping[int, int]) -> m.Reason:
    if reason.rank >= 0 or reason.job_rank not in rank_of:
        return reason
    return msgspec.structs.replace(reason, rank=rank_of[reason.job_rank])


def add_reasons(reasons: tuple[m.Reason, ...], more: Iterable[m.Reason]) -> tuple[m.Reason, ...]:
    """Append the reasons that are new, up to `MAX_REASONS`; long texts are cut.

    They are in order of arrival, with consequences last: a rank may notice that a peer is gone
    before the guard of that peer does.
    """
    result = dict.fromkeys([*reasons, *map(_cut, more)])
    return tuple(sorted(result, key=lambda reason: reason.consequence))[:MAX_REASONS]


def _cut(reason: m.Reason) -> m.Reason:
    if len(reason.text) <= MAX_TEXT:
        return reason
    return msgspec.structs.replace(reason, text=reason.text[: MAX_TEXT - 3] + "...")


def slowest(joins: Iterable[m.Join]) -> dict[str, tuple[float, int]]:
    """Return for every phase of the recovery its longest time in seconds, and the rank of it."""
    result: dict[str, tuple[float, int]] = {}
    for join in joins:
        for name, seconds in join.phases.items():
            if name not in result or seconds > result[name][0]:
                result[name] = (seconds, join.job_rank)
    return result


def dismiss(call: int, job_rank: int, text: str, *, finished: bool = False) -> c.ControllerCommand:
    """Tell one rank that it must not go on; see `messages.Dismissed`."""
    return c.Tell((job_rank,), m.Dismissed(call, job_rank, text, finished))
