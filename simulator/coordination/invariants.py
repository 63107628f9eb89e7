"""What must hold at every moment of a run, checked as things happen; see docs/design/simulator.md.

Every check takes constant time, except that of a new table, which looks at each of its nodes once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulator.coordination.setup import BY_HAND, COORDINATOR
from simulator.run import InvariantError
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import register
from undaunted.coordinator.lead.leader import UNHELD
from undaunted.coordinator.policy.messages import ExclusionOrdered, RestartOrdered

if TYPE_CHECKING:
    from collections.abc import Collection

    from simulator.coordination.setup import Setup
    from simulator.virtual.engine import Simulation
    from undaunted.coordinator.policy.messages import NodeEvent
    from undaunted.coordinator.policy.policy import JobPolicy
    from undaunted.coordinator.policy.verdict import Examination

_NS = 1_000_000_000
# A node counts as healthy so long after the end of the last fault that concerned it.
_HEALTHY_AFTER_NS = 20 * _NS
# Around the end of the job: within this time a follower that was lost is back, and so long a leader
# may stay after the end.
_TOLD_SINCE_NS = 10 * _NS
_TOLD_UNTIL_NS = 10 * _NS
# Ranks of a machine that stood still are gone so long after it heard what happened: their grace.
_STOPS_LATE_NS = 5 * _NS // 2

# A leader that no fault has concerned for so long has asked at the endpoint.
_ASKED_NS = 5 * _NS

# Who hangs is decided within this time after a limit was passed: 1.8 s, and the policy's own steps.
_RULED_NS = 2 * _NS

Seat = register.Voter


class BegunAnew(Exception):  # noqa: N818 - nothing is wrong
    """Nobody could tell the endpoint's launcher that the job had begun, or how far it was."""


@dataclass(slots=True)
class _Round:
    """A round that has begun somewhere."""

    ledger: p.Ledger
    seats: frozenset[Seat]
    since_ns: int
    history: bytes
    excluded: frozenset[str]
    started: set[Seat] = field(default_factory=set)
    up: int = 0  # nodes all of whose ranks run, and which nobody has told to stop

    @property
    def table(self) -> tuple[p.Seat, ...]:
        """Its nodes."""
        return self.ledger.table


class Checker:
    """Told of everything that the invariants are about; raises `InvariantError`.

    Attributes:
        ledger: the newest that a leader has written down, of a job that has begun.
        alive: agents that run.
        ended_as: how the job ended for agents: outcome and reason.
        job_outcome: how it ended for all, "" = it has not.
        followed: agents that followed the leader that ended it.
        over_ns: since when a leader has ended it, and has told everybody it could reach; 0 = none.
        takeovers: how often an agent has been made the leader by others.
        asked_for_exclusion, told_to_leave: nodes.
        may_be_excluded: nodes without which the job was ordered to go on; perhaps it does not.
        free_rounds: how many have been ordered, and perhaps begin.
        cut_off_for_good: nodes that can never find the leader again.
        disk_lost: a machine has, so that its launcher may go on from what others remember.
        began_anew: nodes whose launchers lead the job from its beginning, since too few of an
            earlier start were within their reach: what was on their disks does not count.
        birth: of the job, see `protocol.Ledger`; 0 = no round has begun.
    """

    def __init__(self, setup: Setup, simulation: Simulation) -> None:
        self.ledger = p.Ledger(run_id="")
        self.alive: set[Seat] = set()
        self.ended_as: dict[Seat, tuple[str, str]] = {}
        self.job_outcome = ""
        self.followed: set[Seat] = set()
        self.over_ns = 0
        self.takeovers = 0
        self.asked_for_exclusion: set[str] = set()
        self.told_to_leave: set[str] = set()
        self.may_be_excluded: set[str] = set()
        self.free_rounds = 0
        self.cut_off_for_good: set[str] = set()
        self.disk_lost = False
        self.began_anew: set[str] = set()
        self.birth = 0
        self._setup = setup
        self._simulation = simulation
        self._rounds: dict[int, _Round] = {}
        self._newest = -1
        self._led_in = 0  # newest epoch in which a round of it has begun
        self._running: dict[Seat, int] = {}  # which round, if all ranks run and none shall stop
        self._stopped: dict[Seat, int] = {}  # last round that it was told to stop
        self._suspended: dict[Seat, int] = {}  # how many times it stands still
        self._whole: set[int] = set()  # rounds whose ranks run on enough nodes, and shall
        self._processes: dict[int, set[Seat]] = {}  # where all ranks of a round are alive
        self._ranks: dict[int, dict[Seat, int]] = {}  # rank to who has a process of it: which round
        self._excused_until: dict[str, int] = {}  # nodes whose ranks may end late
        self._settled = -1  # a round that has run for so long that no older one may
        self._touched_until: dict[str, int] = {}
        self._cuts: list[tuple[frozenset[str], int]] = []  # nodes that are cut off, until
        self._faults: dict[str, list[tuple[int, int]]] = {}  # of each node: from, until
        self._epochs: dict[int, Seat] = {}
        self._follows_on: dict[tuple[int, int], int] = {}  # epoch and round: which round before
        self._launched_at: dict[str, int] = {}
        self._ended_by, self._ended_at = "", 0
        self._idle_ns, self._idle_since = 0, 0
        self._blamed: set[tuple[Seat, int, int, str]] = set()
        self._stops_after: dict[tuple[int, int], int] = {}  # by epoch and round
        self._restarts: list[tuple[JobPolicy, int, list[int]]] = []  # how many, when they came
        # By the epoch of a leader that was told to end the job: the last round it had started.
        self._ended_by_hand: dict[int, int] = {}
        self._stopped_without_etcd: set[int] = set()  # rounds; what follows them costs nothing
        self._examined: dict[str, tuple[Examination, int]] = {}  # by the leader's node: since when

    @property
    def rounds(self) -> int:
        """How many rounds have begun."""
        return len(self._rounds)

    @property
    def led_by(self) -> Seat | None:
        """Who leads under the newest epoch that a ledger was written in, None = nobody."""
        return self._epochs.get(self.ledger.epoch)

    @property
    def newest(self) -> int:
        """The last round that has begun anywhere, -1 = none."""
        return self._newest

    @property
    def job_runs(self) -> bool:
        """Whether all ranks of a round run, or of as many nodes as it needs."""
        return bool(self._whole)

    @property
    def idle_s(self) -> float:
        """For how long no round had the ranks of enough nodes at work, in seconds."""
        more_ns = 0 if self._whole else self._simulation.now - self._idle_since
        return (self._idle_ns + more_ns) / _NS

    # --- faults ---------------------------------------------------------------------------------

    def touch(self, node: str, until_ns: int) -> None:
        """A fault concerns a node up to a moment."""
        self._touched_until[node] = max(self._touched_until.get(node, 0), until_ns)
        self.keep_from(node, until_ns)

    def keep_from(self, node: str, until_ns: int) -> None:
        """A fault of the network, or of the leader, may keep from a node how the job ends."""
        self._faults.setdefault(node, []).append((self._simulation.now, until_ns))

    def cut(self, nodes: Collection[str], until_ns: int) -> None:
        """The network between these nodes and all others is cut up to a moment."""
        self._cuts.append((frozenset(nodes), until_ns))

    def excuse(self, node: str, until_ns: int) -> None:
        """Ranks of a node may live on for a while beside those that replace them."""
        self._excused_until[node] = max(self._excused_until.get(node, 0), until_ns)
        self._simulation.at(until_ns, self._no_rank_is_twice, None)

    def launched(self, seat: Seat) -> None:
        """An agent has been started."""
        self.alive.add(seat)
        self._launched_at[seat[0]] = self._simulation.now

    def gone(self, seat: Seat) -> None:
        """An agent runs no more."""
        self.alive.discard(seat)

    def paused(self, seat: Seat) -> None:
        """A machine stands still: what is said of its ranks does not count."""
        pauses = self._suspended.get(seat, 0)
        if not pauses:
            self._leave_world(seat)
        self._suspended[seat] = pauses + 1

    def resumed(self, seat: Seat) -> None:
        """The machine has run long enough again to hear what happened meanwhile."""
        self.excuse(seat[0], self._simulation.now + _STOPS_LATE_NS)
        pauses = self._suspended.pop(seat, 0)
        if pauses > 1:
            self._suspended[seat] = pauses - 1
        elif pauses and seat in self._running:
            self._join_world(self._running[seat])
            self._not_older(seat)

    # --- rounds ---------------------------------------------------------------------------------

    def begin(self, seat: Seat, ledger: p.Ledger) -> None:
        """An agent begins its part of the round of a ledger."""
        number = ledger.round
        self._one_job(seat, ledger)
        known = self._rounds.get(number)
        if known is None:
            known = self._new_round(ledger)
        elif known.table is not ledger.table and known.table != ledger.table:
            alone = not all(map(p.has_committee, (known.ledger, ledger)))
            anew = self.began_anew and known.ledger.birth != ledger.birth
            if (self.disk_lost or anew) and alone:
                raise BegunAnew
            self._fail(
                f"never two worlds: round {number} begins with two tables, {_names(known.table)} "
                f"and {_names(ledger.table)}"
            )
        if seat not in known.seats:
            self._fail(f"each rank in one place: {seat} runs round {number} without a seat in it")
        if seat in known.started:
            self._fail(f"each rank in one place: {seat[0]} starts round {number} twice")
        known.started.add(seat)

    def _one_job(self, seat: Seat, ledger: p.Ledger) -> None:
        """No second one begins while the leader of the first could have said so."""
        self.birth = self.birth or ledger.birth
        if ledger.birth == self.birth:
            self._led_in = max(self._led_in, ledger.epoch)
            return
        leader, since = self._epochs.get(self._led_in), self._simulation.now - _ASKED_NS
        if leader is None or leader not in self.alive or leader in self.ended_as:
            raise BegunAnew
        quorum = not register.lacking(self.alive - self.ended_as.keys(), self.ledger)
        well = quorum and self._touched_until.get(leader[0], 0) <= since
        if well and not any(until > since for _, until in self._cuts):
            self._fail(f"one job: {seat[0]} begins another one, and {leader[0]} leads it")
        raise BegunAnew

    def up(self, seat: Seat, number: int) -> None:
        """All ranks of a node run."""
        self._processes.setdefault(number, set()).add(seat)
        ranks = self._ranks_of(seat, number)
        for rank in ranks:
            self._ranks.setdefault(rank, {})[seat] = number
        self._one_world_has_processes()
        for rank in ranks:
            self._is_not_twice(rank)
        if self._stopped.get(seat, -1) >= number:
            return
        self._running[seat] = number
        if seat not in self._suspended:
            self._join_world(number)
            self._not_older(seat)

    def stopping(self, seat: Seat, number: int) -> None:
        """An agent has been told to stop its ranks, or has decided to."""
        self._stopped[seat] = number
        self._leave_round(seat, number)

    def down(self, seat: Seat, number: int, local_rank: int | None = None) -> None:
        """A rank has ended; None: every rank of that node has."""
        ranks = self._ranks_of(seat, number)
        for rank in ranks if local_rank is None else ranks[local_rank : local_rank + 1]:
            self._ranks.get(rank, {}).pop(seat, None)
        self._processes.get(number, set()).discard(seat)
        self._leave_round(seat, number)

    def _leave_round(self, seat: Seat, number: int) -> None:
        if self._running.get(seat) == number:
            if seat not in self._suspended:
                self._leave_world(seat)
            del self._running[seat]

    # --- leaders and the end --------------------------------------------------------------------

    def leads(self, seat: Seat, epoch: int, *, takeover: bool) -> None:
        """An agent has become the leader of an epoch."""
        self.takeovers += takeover
        other = self._epochs.setdefault(epoch, seat)
        if other != seat:
            self._fail(f"one leader per epoch: {other[0]} and {seat[0]} both lead epoch {epoch}")

    def replaced(self, before: p.Ledger, now: p.Ledger) -> None:
        """What a register outside of the launchers keeps is replaced."""
        if before.epoch > now.epoch:
            self._fail(
                f"one history: the leader of epoch {now.epoch} replaces what a later one, of "
                f"{before.epoch}, has written"
            )

    def budget(self, ledger: p.Ledger) -> None:
        """A leader has changed the ledger."""
        used, most = ledger.restarts_used, self._setup.max_restarts
        if used > most:
            self._fail(f"the budget: {used} restarts have been used of {most}")
        self.asked_for_exclusion |= self.may_be_excluded.intersection(ledger.excluded)
        for node in ledger.excluded:
            if node not in self.asked_for_exclusion:
                self._fail(f"no healthy node is evicted: {node} is excluded and never asked for it")
        if ledger.pending_round > ledger.round:
            self._follows_on[ledger.epoch, ledger.pending_round] = ledger.round
        if p.newer(ledger, self.ledger):
            self.ledger = ledger

    def blamed(self, seat: Seat, epoch: int, number: int, line: str) -> None:
        """A node hears who is to blame for a hang, or for the end of a round."""
        if (seat, epoch, number, line) in self._blamed:
            self._fail(f"one cause: {seat[0]} is told twice in epoch {epoch} who ended {number}")
        self._blamed.add((seat, epoch, number, line))

    def stops_after(self, seat: Seat, epoch: int, number: int, iteration: int, asked: int) -> None:
        """Ranks of a round stop after an iteration; they had ``asked`` about that one before."""
        # Another leader decides for nodes that are there for it, which may be others.
        known = self._stops_after.setdefault((epoch, number), iteration)
        if known != iteration:
            self._fail(f"one end: {seat[0]} stops {number} after {iteration}, others after {known}")
        first = min(other for other, of in self._stops_after if of == number)
        if asked >= iteration and epoch == first:
            self._fail(f"one end: {seat[0]} has passed {iteration} in round {number}: {asked}")

    def restarts(self, policy: JobPolicy) -> None:
        """A leader's policy has taken an event."""
        limit, used, now = self._setup.restart_intensity, policy.restarts_used, self._simulation.now
        if limit is None:
            return
        known = [each for each in self._restarts if each[0] is policy]
        _, before, times = known[0] if known else (policy, used, [])
        if known and used == before:
            return
        times = times[: used - before] if used < before else [*times, *[now] * (used - before)]
        others = [each for each in self._restarts if each[0] is not policy]
        self._restarts = [*others, (policy, used, times)]
        recent = [time for time in times if now - time < limit[1] * _NS]
        if len(recent) > limit[0]:
            self._fail(f"the budget: {len(recent)} restarts within {limit[1]:g} s of {limit[0]}")

    def reported(self, event: NodeEvent, used_before: int, used: int) -> None:
        """A leader has taken a report: what is ordered costs no restart."""
        if isinstance(event, RestartOrdered | ExclusionOrdered) and used > used_before:
            self._fail(f"the budget: {event} has used a restart")

    def decides(self, epoch: int, policy: JobPolicy) -> None:
        """A leader's policy has taken an event: perhaps an order to end the job."""
        closing = policy.last.closing
        ending = policy.ending or closing.ending
        if ending is not None and BY_HAND in ending.reason:
            self._ended_by_hand.setdefault(epoch, policy.round)
        if UNHELD in closing.reason:
            self._stopped_without_etcd.add(policy.round)

    def examines(self, node: str, examination: Examination | None) -> None:
        """A leader waits for what nodes have seen, after a limit was passed; None = it does not."""
        if examination is None:
            self._examined.pop(node, None)
            return
        known, since = self._examined.get(node, (None, 0))
        now = self._simulation.now
        if known is not examination:
            self._examined[node] = examination, now
        elif examination.failed and now - since > _RULED_NS and not self._suspended_lately(node):
            self._fail(f"a hang is judged: {node or 'the coordinator'} waits for evidence too long")

    def _suspended_lately(self, node: str) -> bool:
        return not self.untouched_for(node or COORDINATOR, _RULED_NS / _NS)

    def ended(
        self,
        seat: Seat,
        outcome: str,
        reason: str,
        by: str = "",
        *,
        unbegun: bool = False,
        birth: int = 0,
    ) -> bool:
        """The job is over for an agent.

        Args:
            seat: the agent's.
            outcome: how it ended.
            reason: why.
            by: the node of the leader that has said so.
            unbegun: that leader knows of no round, and this job has no quorum any more: a leader
                without one tells nobody that it leads.
            birth: of the job that has ended, as the agent knows it.

        Returns:
            Whether this is the verdict for all from now on.
        """
        self.ended_as[seat] = (outcome, reason)
        node = seat[0]
        if outcome in ("gave up", self.job_outcome):
            return False
        if outcome == "excluded" and node in self.asked_for_exclusion | self.may_be_excluded:
            return False
        if outcome == "preempted" and node in self.told_to_leave:
            return False
        if self.job_outcome and not (self.could_be_told(node) and self.could_be_told(by)):
            return False
        if unbegun and by in self.began_anew:
            return False  # it leads another job
        if self.job_outcome and self.disk_lost and unbegun:
            return False  # so it does
        if self.job_outcome and birth != self.birth and self._launched_after_the_end(by):
            return False  # so it does: who led the first one has removed its file
        if self.job_outcome and self.could_be_told(self._ended_by):
            self._fail(
                f"one verdict: the job ended as {outcome} for {node} ({reason}), as "
                f"{self.job_outcome} for others"
            )
        self.job_outcome, self._ended_by, self._ended_at = outcome, by, self._simulation.now
        return True

    def could_be_told(self, node: str) -> bool:
        """Whether no fault concerned a node from before the job's end until its leader is gone.

        Whoever is cut off or stands still then cannot know how the job ended. It ends by itself
        later; so do those whom it leads. If it is the leader that ends the job, the others cannot
        know, and go on: the verdict is theirs.
        """
        if node in self.cut_off_for_good:
            return False
        if not self.job_outcome:
            return True
        since, until = self._ended_at - _TOLD_SINCE_NS, self._ended_at + _TOLD_UNTIL_NS
        return all(to < since or at > until for at, to in self._faults.get(node, ()))

    def _launched_after_the_end(self, node: str) -> bool:
        """Whether its launcher may know nothing of the job that has ended."""
        ended_at = min(self._ended_at, self.over_ns or self._ended_at)
        return self._launched_at.get(node, 0) > ended_at

    def untouched_for(self, node: str, seconds: float) -> bool:
        """Whether no fault has concerned a node for so long."""
        since = self._simulation.now - round(seconds * _NS)
        return all(until <= since for _, until in self._faults.get(node, ()))

    # --- leaves ---------------------------------------------------------------------------------

    def _new_round(self, ledger: p.Ledger) -> _Round:
        number, table = ledger.round, ledger.table
        seats = frozenset(register.voter(each) for each in table)
        excluded = frozenset(ledger.excluded)
        known = _Round(ledger, seats, self._simulation.now, ledger.history, excluded)
        self._rounds[number] = known
        first = 0
        for group_rank, seat in enumerate(sorted(table, key=lambda each: each.group_rank)):
            if (seat.group_rank, seat.first_rank) != (group_rank, first):
                self._fail(f"each rank in one place: round {number} has gaps or overlaps: {table}")
            first += seat.slots
        if len({seat.node for seat in table}) != len(table) or len(table) < self._setup.nodes:
            self._fail(f"each rank in one place: round {number} runs on {_names(table)}")
        # A start that was under way as the order came may be heard after it.
        if number > self._ended_by_hand.get(ledger.epoch, number):
            self._fail(f"an order ends the job: round {number} begins after it")
        if back := [seat.node for seat in table if seat.node in excluded]:
            self._fail(f"who is excluded stays so: {', '.join(back)} in round {number}")
        free = len(self.told_to_leave) + self.free_rounds + len(self._stopped_without_etcd)
        most = 1 + self._setup.max_restarts + free
        if not self._setup.elastic and len(self._rounds) > most:
            self._fail(f"the budget: round {number} is number {len(self._rounds)} of {most}")
        if number > self._newest:
            if self._newest >= 0:
                by = self._epochs.get(ledger.epoch, ("", ""))[0]
                before = self._followed_by(ledger)
                self._nobody_evicted(before, known, by)
                if forgotten := sorted(before.excluded - excluded):
                    names = ", ".join(forgotten)
                    self._fail(f"who is excluded stays so: round {number} forgets {names}")
                if not known.history.startswith(before.history):
                    self._fail(
                        f"a history is kept: that of round {number}, {known.history.hex()}, does "
                        f"not begin with that of the round before it, {before.history.hex()}"
                    )
            self._newest = number
        return known

    def _followed_by(self, ledger: p.Ledger) -> _Round:
        """The round whose nodes have places in the new one of a ledger.

        It is the last one. But of a round that not all of its nodes have begun a later leader may
        know nothing, or know that it never will: then it goes on from the one before.
        """
        newest = self._rounds[self._newest]
        if newest.started == newest.seats:
            return newest
        number = self._follows_on.get((ledger.epoch, ledger.round), self._newest)
        return self._rounds.get(number, newest)

    def _nobody_evicted(self, before: _Round, after: _Round, leader: str) -> None:
        """A node that nothing has happened to stays in the job.

        Nor has anything happened between it and the leader of the new round.
        """
        since = before.since_ns - _HEALTHY_AFTER_NS
        cuts = [nodes for nodes, until in self._cuts if until > since]
        for seat in before.table:
            who = register.voter(seat)
            healthy = who in self.alive and self._touched_until.get(seat.node, since) <= since
            if not healthy or who in after.seats or who in self.ended_as:
                continue
            if not any((seat.node in nodes) != (leader in nodes) for nodes in cuts):
                self._fail(
                    f"no healthy node is evicted: {seat.node} has had no fault, and has no place "
                    f"any more; the round runs on {_names(after.table)}"
                )

    def _ranks_of(self, seat: Seat, number: int) -> range:
        if not self._setup.exact:
            return range(0)
        mine = next(each for each in self._rounds[number].table if each.node == seat[0])
        return range(mine.first_rank, mine.first_rank + mine.slots)

    def _no_rank_is_twice(self, _: None) -> None:
        for rank in self._ranks:
            self._is_not_twice(rank)

    def _is_not_twice(self, rank: int) -> None:
        """A rank has one process, whoever was told to stop: what it writes, it writes alone."""
        now, held = self._simulation.now, self._ranks[rank]
        if len(held) < 2:
            return
        twice = [
            f"on {node} in round {number}"
            for (node, incarnation), number in held.items()
            if (node, incarnation) not in self._suspended
            and self._excused_until.get(node, 0) <= now
        ]
        if len(twice) > 1:
            self._fail(f"each rank once: there are processes of rank {rank} {' and '.join(twice)}")

    def _one_world_has_processes(self) -> None:
        """Ranks that were told to stop may go on until they are killed: that is part of a world."""
        for number in [number for number, seats in self._processes.items() if not seats]:
            del self._processes[number]
        whole = [
            number
            for number, seats in self._processes.items()
            if len(seats) == len(self._rounds[number].table)
            and not any(seat in self._suspended for seat in seats)
        ]
        if len(whole) > 1:
            names = " and ".join(f"{n} on {_names(self._rounds[n].table)}" for n in whole)
            self._fail(f"never two worlds: the ranks of these rounds are all alive: {names}")

    def _join_world(self, number: int) -> None:
        world = self._rounds[number]
        world.up += 1
        if world.up == self._enough(world):
            if not self._whole:
                self._idle_ns += self._simulation.now - self._idle_since
            self._whole.add(number)
            if len(self._whole) > 1:
                one, other = sorted(self._whole)
                self._fail(
                    f"never two worlds: all ranks of round {one} run on "
                    f"{_names(self._rounds[one].table)}, all of round {other} on "
                    f"{_names(self._rounds[other].table)}"
                )
            at_ns = self._simulation.now + round(self._setup.old_world_s * _NS)
            self._simulation.at(at_ns, self._older_ones_are_over, number)

    def _older_ones_are_over(self, number: int) -> None:
        """Some time after a round ran, nothing of an older one does, wherever it may be."""
        self._settled = max(self._settled, number)
        for seat in self._running:
            self._not_older(seat)

    def _not_older(self, seat: Seat) -> None:
        """A node runs no round that is long over."""
        number = self._running[seat]
        if number < self._settled and seat not in self._suspended:
            self._fail(
                f"an old world ends: {seat[0]} runs round {number}, and nobody has told it to "
                f"stop, {self._setup.old_world_s:g} s after round {self._settled} ran"
            )

    def _leave_world(self, seat: Seat) -> None:
        number = self._running.get(seat)
        if number is None:
            return
        world = self._rounds[number]
        world.up -= 1
        if world.up < self._enough(world):
            if self._whole == {number}:
                self._idle_since = self._simulation.now
            self._whole.discard(number)

    def _enough(self, world: _Round) -> int:
        """So many nodes of a round do its work: all, or what a job needs that may lose some."""
        return self._setup.nodes if self._setup.min_healthy else len(world.table)

    def _fail(self, text: str) -> None:
        raise InvariantError(text)


def _names(table: tuple[p.Seat, ...]) -> str:
    return ",".join(seat.node for seat in table)
