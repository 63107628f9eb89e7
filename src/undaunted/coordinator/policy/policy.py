"""The job policy: one deterministic state machine for the whole job.

Events come from nodes, commands go to them (see `messages`). There is no clock, socket or thread in
here, so that the same code runs inside a single agent, behind a server, and in a simulator.

States::

    FORMING    waiting for enough nodes, or for a quorum
    PREPARING  the nodes of the next round are learning its table
    RUNNING    a round runs
    STOPPING   every node of the round has been told to stop; `Round.closing` says what follows
    ENDED      the outcome is decided and sent; nothing changes it

When a rank passes a limit, the round stays RUNNING until all nodes have been looked at: see
`examination`. Reports about a round that is over are stale and ignored. When the job has ended, a
node that joins gets the outcome; nothing else is heard.

The way of a round: `JobPolicy._form`, `_start`, `_stop_round`, `_over_if_stopped`, and from there
`_form` once more, or `_end`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from undaunted.base.text import count, format_duration
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy import placement
from undaunted.coordinator.policy.budget import (
    FORGET,
    FREE_REPEATS,
    Intensity,
    ProgressTracker,
    growing_pause_s,
    together,
)
from undaunted.coordinator.policy.formation import Formation
from undaunted.coordinator.policy.placement import Placement, name_some
from undaunted.coordinator.policy.round import (
    MOST_EXCLUDED,
    Closing,
    Ending,
    Members,
    Round,
    Stopping,
    Unwanted,
)
from undaunted.coordinator.policy.verdict import (
    ALWAYS_ENDS,
    EVIDENCE_S,
    MOST_HISTORY,
    Attempt,
    Case,
    Cause,
    Examination,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from undaunted.coordinator.policy.config import PolicyConfig
    from undaunted.coordinator.policy.formation import Roster
    from undaunted.coordinator.policy.verdict import Ruling

# SIGTERM to SIGKILL when nothing is lost by being quick: a peer is dead or hung, so the others
# wait in communication, where a Python-level SIGTERM handler cannot run.
GRACE_AFTER_FAILURE_S = 2.0
# The same when the ranks are healthy and may want to save something.
GRACE_ON_REQUEST_S = 15.0
# How much longer than the grace a node may take to report that it has stopped: processes that
# cannot be killed, health checks and the wait for device memory are part of that.
STOP_MARGIN_S = 180.0
# How the job ends when a rank wants it to, or is not to go on where it is, and why.
_WISHES = {
    "suspect": (m.Outcome.SUSPECT, "{} has a result that may be wrong"),
    "requested": (m.Outcome.PREEMPTED, "{} asked for a stop"),
    "deadline": (m.Outcome.PREEMPTED, "the time that the job has is over, says {}"),
    "invalid": (m.Outcome.INVALID, "{} has a result that is not to be used"),
    "straggler": (m.Outcome.STRAGGLER, "{} is slow"),
}
_MISUSE = (
    "not restarted: every rank that ended did so at once, as with wrong arguments (exit code 2) or "
    "a script that is no valid Python"
)


class PolicyState(enum.Enum):
    """See the module's documentation."""

    FORMING = enum.auto()
    PREPARING = enum.auto()
    RUNNING = enum.auto()
    STOPPING = enum.auto()
    ENDED = enum.auto()


@dataclass(slots=True)
class JobPolicy:
    """See the module's documentation. Feed events to `handle`, carry out what it returns.

    Attributes:
        config: settings of the job.
        state: see the module's documentation.
        round: number of the last round that was started, -1 = none.
        prepared: number of the last round that another leader has prepared, and perhaps started
            somewhere.
        restarts_used: restarts that count, out of ``config.max_restarts``.
        ending: how the job ended, None = it has not.
        formation: chooses the nodes of the next round.
        tracker: whether rounds advance.
        intensity: restarts that are not long ago.
        history: of the rounds that are over, opaque; see `verdict`.
        failure: of the last round, for the ranks of the next one; see `messages.Start`. Of the
            first round: that of the job's start before this one.
        slow_before: ranks whose node was left out since they were slow.
        turned: by how many places ranks are on other slots than in the first round.
        limits: that somebody has ordered, for nodes that join later; None = nobody has.
        stop_ordered: somebody has ordered the end, None = nobody has.
        no_quorum: why nothing may be started, nor the job ended; "" = there is a quorum.
        few: why no other node can come, "" = some may.
        gone: why nodes have left the job since a table was made last, "" = none has.
        pausing: the next round is put off since a restart is unlikely to help so soon.
        last: the last round that was started.
    """

    config: PolicyConfig
    # of the job
    state: PolicyState = PolicyState.FORMING
    round: int = -1
    prepared: int = -1
    restarts_used: int = 0
    ending: Ending | None = None
    formation: Formation = field(init=False)
    tracker: ProgressTracker = field(init=False)
    intensity: Intensity = field(init=False)
    history: bytes = b""
    failure: str = ""
    slow_before: tuple[int, ...] = ()
    turned: int = 0
    limits: m.NewLimits | None = None
    stop_ordered: m.StopOrdered | None = None
    no_quorum: str = ""
    few: str = ""
    # until the next round begins
    gone: str = ""
    pausing: bool = False
    last: Round = field(default_factory=Round)

    def __post_init__(self) -> None:
        """Begin with nothing known."""
        c = self.config
        self.failure = c.failure
        self.formation, self.intensity = Formation(c), Intensity(c.restart_intensity)
        limits = (c.max_no_progress_cycles, c.min_progress_iterations)
        self.tracker = ProgressTracker(*limits, max_restarts=c.max_restarts)

    @classmethod
    def restored(
        cls,
        config: PolicyConfig,
        *,
        round: int,  # noqa: A002 - called so everywhere
        nodes: Iterable[m.NodeInfo],
        prepared: int = -1,
        memory: m.Memory = m.NOTHING,
    ) -> JobPolicy:
        """Go on where another policy of the job stopped, with its round running.

        Args:
            config: the job's.
            round: its number.
            nodes: its members, in the order of group ranks; feed NodeLost for members that are not
                there, NodeJoined for spares. Without members it waits for nodes.
            prepared: highest number of a round that was prepared; it is not used again, since some
                node may have begun that round.
            memory: of that policy; feed an order to stop anew.
        """
        known = list(nodes)
        policy = cls(config, round=round, prepared=prepared)
        policy.restarts_used = memory.restarts_used
        policy.last = Round(Members(placement.places(known)))
        for node in known:
            policy.roster.join(node)
        policy.roster.excluded.update(memory.excluded)
        policy.tracker.restore(memory.reached, memory.stalled)
        policy.history, policy.failure = memory.history, memory.failure
        policy.slow_before, policy.turned = memory.slow, memory.turned
        policy.limits, policy.stop_ordered = memory.limits, memory.stop
        if known:
            policy.state = PolicyState.RUNNING
        return policy

    @property
    def memory(self) -> m.Memory:
        """The memory for the next leader."""
        reached, stalled = self.tracker.known
        return m.Memory(
            restarts_used=self.restarts_used,
            excluded=dict(self.roster.excluded),
            reached=reached,
            stalled=stalled,
            history=self.history,
            failure=self.failure,
            slow=self.slow_before,
            turned=self.turned,
            limits=self.limits,
            stop=self.stop_ordered,
        )

    @property
    def ended(self) -> bool:
        """Return whether the outcome is decided and sent."""
        return self.state is PolicyState.ENDED

    @property
    def running(self) -> bool:
        """Return whether the round has been started and not stopped."""
        return self.state is PolicyState.RUNNING

    @property
    def preparing(self) -> bool:
        """Return whether the nodes of the next round are chosen and learn its table."""
        return self.state is PolicyState.PREPARING

    @property
    def places(self) -> tuple[m.Place, ...]:
        """Places of the last round that was started."""
        return tuple(member.place for member in self.last.members.all.values())

    @property
    def next_round(self) -> int:
        """Number of the next round."""
        return max(self.round, self.prepared) + 1

    @property
    def roster(self) -> Roster:
        """The nodes that are known."""
        return self.formation.roster

    @property
    def restarts_left(self) -> int:
        """Restarts the job may still take."""
        return max(0, self.config.max_restarts - self.restarts_used)

    def handle(self, event: m.Event) -> list[m.Command]:
        """Take one event; return the commands it causes, in order."""
        if (ending := self.ending) is not None:
            late = [event.info.name] if isinstance(event, m.NodeJoined) else []
            return [m.End(node, ending.outcome, ending.reason) for node in late]
        commands = self._take(event)
        if self.last.examination is not None and self.last.examination.complete(
            self.last.members.working
        ):
            commands += self._rule(self.last.examination)
        if self.last.stopping is not None and self.last.stopping.decide(self.last.members.working):
            commands += self._decided_to_stop(self.last.stopping)
        return commands

    def _take(self, event: m.Event) -> list[m.Command]:  # noqa: C901, PLR0912 - a case each
        match event:
            case m.NodeJoined():
                return self._joined(event.info)
            case m.NodeLost():
                return self._lost(event)
            case m.NodeReturns(node=node):
                self.roster.returning.add(node)
                return []
            case m.TableAccepted():
                due = self.preparing and event.round == self.next_round
                return self._start(event) if due else []
            case m.Preempted(node=node, signal=signal, signal_name=name):
                return self._leaves(node, signal, f"the launcher on node {node} received {name}")
            case m.NodeUnhealthy():
                return self._unhealthy(event)
            case m.QuorumLost():
                return self._quorum_lost(event)
            case m.QuorumRegained():
                return self._quorum_regained()
            case m.ExclusionOrdered() | m.LimitsOrdered() | m.RestartOrdered() | m.StopOrdered():
                return [_as_answer(command, event) for command in self._ordered(event)]
            case m.TimerFired(name=name, round=number) if name.startswith(FORGET):
                self.intensity.forget(number)
                return []
            case m.TimerFired():
                return self._timer(event)
        in_round = self.state in {PolicyState.RUNNING, PolicyState.STOPPING}
        if not in_round or event.round != self.round or event.node not in self.last.members.seats:
            return []  # stale, or from a stranger
        working = event.node in self.last.members.working
        match event:
            case m.NodeFailed():
                return self._failed(event)
            case m.NodeEvidence(node=node, evidence=evidence):
                if self.last.examination is not None and working:
                    self.last.examination.answered(node, evidence)
            case m.HangSuspected() if self.running and working:
                return self._suspected(event)
            case m.NodeTimes() if self.running:
                return self._timed(event)
            case m.RankLost() if self.running and working:
                return self._rank_lost(event)
            case m.NodeFinished() if self.running:
                self.last.members.finish(event.node, event.lost)
                return self._finish_if_done()
            case m.NodeStopped():
                return self._stopped(event)
            case m.ExclusionRequested():
                return self._exclusion_requested(event)
            case m.ShutdownRequested():
                return self._shutdown_requested(event)
            case m.StopWanted():
                return self._stop_wanted(event)
            case m.RanksAsked() if self.last.stopping is not None and working:
                self.last.stopping.take(event)
                return self._stops_after([event.node])
        return []

    # --- nodes come and go ----------------------------------------------------------------------

    def _joined(self, info: m.NodeInfo) -> list[m.Command]:
        if info.name in self.roster.here:
            self.roster.here[info.name] = info
            return []
        if reason := self.roster.excluded.get(info.name):
            return [m.End(info.name, m.Outcome.EXCLUDED, reason)]
        self.roster.join(info)
        if self.state is PolicyState.FORMING:
            return self._form()
        if not self.running:
            return []
        return [m.SetTimer("joined", self.round, self.config.last_call_s)]

    def _lost(self, event: m.NodeLost) -> list[m.Command]:
        node = event.node
        self.roster.lose(node, returns=event.returns)
        if self.state is PolicyState.FORMING or node in self.formation.chosen:
            return self._form()
        if self.preparing or node not in self.last.members.unstopped:
            return []  # it took no part, or had stopped
        worked, finished = node in self.last.members.working, self.last.members.all[node].finished
        self.last.members.lose(node)
        if not finished:
            culprit = node if event.culprit is None else event.culprit
            paused = event.culprit is not None
            self.last.blame.lost(culprit, event.reason, paused=paused)
        if self.state is PolicyState.STOPPING:
            short = self._cut_short(event.reason) if worked else []
            return [*short, *self._over_if_stopped()]
        return self._nodes_down([node], event.reason) if worked else self._finish_if_done()

    def _leaves(self, node: str, signal: int, reason: str) -> list[m.Command]:
        """A node goes in order: with the others if they cannot go on without it."""
        if not self._takes_part(node):
            alone = not (self.roster.here.keys() - {node})
            if not self.running and (alone or self.round >= 0):
                self.gone = reason
            return self._go_on_without(node, m.Outcome.PREEMPTED, reason)
        self.roster.leaving[node] = reason
        if self.running:
            agree = "restart" if self._fits() else "preempted"
            return self._stop_round(reason, None, signal=signal, agree=agree)
        agree = "" if self.last.stopping is None else self.last.stopping.agree
        stop = m.Stop("", self.round, reason, self.config.term_timeout_s, signal, agree)
        return [*self.last.members.stops(self.last.members.seats, stop)]

    def _unhealthy(self, event: m.NodeUnhealthy) -> list[m.Command]:
        node, reason = event.node, f"node {event.node} is unhealthy: {event.reason}"
        takes_part = self._takes_part(node)
        if takes_part and event.round != self.round:
            return []  # stale
        self.roster.unhealthy[node] = reason
        if takes_part:
            return self._bar_member(node, reason, self._grace_s(GRACE_AFTER_FAILURE_S))
        return self._go_on_without(node, m.Outcome.EXCLUDED, reason)

    def _takes_part(self, node: str) -> bool:
        """Whether the round must be over before the node can be dismissed."""
        if self.state is PolicyState.STOPPING and node in self.roster.here:
            member = self.last.members.all.get(node)
            return member is not None and not member.lost
        return self.running and node in self.last.members.unstopped

    def _go_on_without(self, node: str, outcome: m.Outcome, reason: str) -> list[m.Command]:
        """Nothing runs on the node: dismiss it at once."""
        commands = self._dismiss(node, outcome, reason)
        if self.state is PolicyState.FORMING or node in self.formation.chosen:
            commands += self._form()
        return commands

    # --- what happens in a round ----------------------------------------------------------------

    def _failed(self, event: m.NodeFailed) -> list[m.Command]:
        node = event.node
        if event.hang and event.gone_on < self.last.members.all[node].gone_on:
            return []  # it had not heard yet that it goes on
        if not event.by_signal:
            self.last.blame.failed(node, event.detail, victim=event.victim, cut_off=event.cut_off)
        if self.state is PolicyState.STOPPING:
            return self._cut_short(self._named(node, event.detail))
        if not self.running or node not in self.last.members.working:
            return []  # the round, or this node's part of it, is being stopped already
        if self.last.examination is not None and node in self.last.examination.suspects:
            self.last.examination.failed[node] = None
            return []  # until all nodes have been looked at
        self.last.members.fail(node)
        return self._nodes_down([node], self._named(node, event.detail))

    def _suspected(self, event: m.HangSuspected) -> list[m.Command]:
        """A limit was passed: have all nodes looked at."""
        if self.config.rule is None or event.gone_on < self.last.members.all[event.node].gone_on:
            return []
        known = self.last.examination
        suspects = {} if known is None else known.suspects
        suspects[event.node] = None
        if known is not None and not known.over:
            return []
        self.last.examination = Examination(tuple(self.last.members.working), suspects)
        others = [node for node in self.last.members.working if node not in suspects]
        timer = m.SetTimer("evidence", self.round, EVIDENCE_S)
        return [*(m.Gather(node, self.round) for node in others), timer]

    def _rule(self, examination: Examination) -> list[m.Command]:
        """All nodes have been looked at: say who it was, and go on as after any failure."""
        self.last.examination = None
        failed, rule = tuple(examination.failed), self.config.rule
        assert rule is not None, "nothing is examined otherwise"
        blame, known = (
            self.last.blame,
            self.last.members.working.keys() | examination.evidence.keys(),
        )
        places = tuple(place for place in self.places if place.node in known)
        members = self.last.members.all
        finished = tuple(each for each in self.places if members[each.node].finished)
        ruling = rule(Case(self.round, places, examination.evidence, finished))
        self.last.blame.ruled(ruling)
        line = ruling.line or blame.reports[failed[0]].line
        why = self._named(ruling.node if ruling.line else failed[0], line)
        told: list[m.Command] = []
        if ruling.line:
            # A note of before comes again: it changes nothing, but is the reason.
            told += self.last.blame.news(self.round) or [m.Say(ruling.line)]
        if ruling.problem:
            told.append(m.Say(f"who hangs is not known, since judging it failed: {ruling.problem}"))
        return [*told, *self._hung(failed, ruling, why)]

    def _hung(self, failed: Collection[str], ruling: Ruling, why: str) -> list[m.Command]:
        """Nodes have reported a hang: it is their own, or they are victims of nodes that work."""
        working = self.last.members.working
        culprits = {place.node for place in self.places if place.has_any(ruling.ranks)}
        known = ruling.certain and not culprits.isdisjoint(working)
        victims = [node for node in working if node in ruling.victims] if known else []
        down = [node for node in working if node in culprits or node in failed] if known else failed
        down = [node for node in down if node not in victims]
        for node in down:
            self.last.members.fail(node)
        commands = self._nodes_down(down, why)
        if not self.running:
            return commands
        if ruling.line:
            self.last.blame.gone_on(down)
        for node in victims:
            self.last.members.all[node].gone_on += 1
        return [*commands, *(m.GoOn(node, self.round) for node in victims)]

    def _timed(self, event: m.NodeTimes) -> list[m.Command]:
        """A node has told how long its ranks have worked in the last steps."""
        if self.last.pace is None and self.config.pace is not None:
            self.last.pace = self.config.pace(self.round, self.places)
        if self.last.pace is None:
            return []
        news = list(self.last.pace(event.node, event.times))
        slow = [each for each in news if isinstance(each, m.Slow)]
        told = [each for each in news if not isinstance(each, m.Slow) or each.line]
        return [*told, *self._slow_for_long(slow)]

    def _slow_for_long(self, news: list[m.Slow]) -> list[m.Command]:
        """Do what the user has chosen when a rank was slow for long and still steps so slowly."""
        if self.config.slow_ranks == "log":
            return []
        if self.last.slowness.note(news):
            return [m.SetTimer("slow", self.round, self.config.slow_ranks_after_s)]
        slow, members = self.last.slowness.worst, self.last.members
        if slow is None or slow not in news or slow.node not in members.working:
            return []
        if members.finished or self.last.examination is not None:
            return []
        node, long = slow.node, format_duration(self.config.slow_ranks_after_s)
        why = f"rank {slow.rank} (node {node}) has been slow for {long}, "
        why += f"{slow.lost:.0%} of the time is lost"
        if self.config.slow_ranks == "stop":
            return self._stop_round(why, Ending(m.Outcome.NO_RESTART, why))
        reason = f"rank {slow.rank} was slow for long"
        unwanted = Unwanted(slow.rank, node, reason, lost=slow.lost)
        if kept := self._kept_though(unwanted):
            said, self.last.slowness.said = self.last.slowness.said, True
            return [] if said else [m.Say(f"{why}; node {node} is kept: {kept}")]
        self.last.unwanted.append(unwanted)
        why += ": the job goes on without the node"
        return self._stop_round(why, None, agree="restart")

    def _kept_though(self, unwanted: Unwanted) -> str:
        """Why the node of such a rank takes part, "" = it need not."""
        if unwanted.otherwise is None and unwanted.rank in self.slow_before:
            return "this rank was slow on another node as well, so its work is slow, not the node"
        if len(self.roster.excluded) >= MOST_EXCLUDED:
            return f"{len(self.roster.excluded)} nodes are excluded already"
        others = self.formation.choose(self.last.members.seats, without=[unwanted.node])
        if not isinstance(others, Placement):
            return "the job needs it, start a spare one"
        ranks = sum(place.slots for place in self.places)
        fewer = 1 - sum(place.slots for place in others.places) / ranks
        if fewer >= unwanted.lost:
            return f"without it there would be {fewer:.0%} fewer ranks, start a spare one"
        return ""

    def _nowhere_else(self, unwanted: Unwanted) -> Ending | None:
        """How the job ends if there is no other place for a rank, None = it goes on."""
        outcome, slots = unwanted.otherwise, max((place.slots for place in self.places), default=0)
        turns = outcome is m.Outcome.SUSPECT and self.turned + 1 < slots  # it was not yet on all
        if outcome is None or turns or not self._kept_though(unwanted):
            return None
        return Ending(outcome, f"{unwanted.why}, and there is no other place for it")

    def _move(self, unwanted: Unwanted) -> Ending | None:
        """The round is over: have the rank somewhere else in the next one, or end the job."""
        if self._kept_though(unwanted):
            ending = self._nowhere_else(unwanted)
            self.turned += unwanted.otherwise is not None and ending is None
            return ending
        self._leave_out([unwanted.node], unwanted.why)
        if unwanted.otherwise is None:
            self.slow_before = tuple(sorted({*self.slow_before, unwanted.rank}))
        return None

    def _rank_lost(self, event: m.RankLost) -> list[m.Command]:
        self.last.members.lose_rank(event.node)
        why = self._named(event.node, event.detail)
        if self._enough_healthy():
            return [m.Say(f"{why}; {self._healthy} are left with all their ranks")]
        self.last.blame.failed(event.node, event.detail)
        return self._restart(why, self._grace_s(GRACE_AFTER_FAILURE_S), m.Outcome.FAILED)

    def _stopped(self, event: m.NodeStopped) -> list[m.Command]:
        node = event.node
        self.last.blame.judged(node, event.verdict, victim=event.victim, finding=event.finding)
        if event.left:
            self.last.blame.left[node] = event.left
        if node not in self.last.members.unstopped:
            return []
        worked = node in self.last.members.working and not event.all_ok
        self.last.members.stop(event)
        if self.state is PolicyState.STOPPING:
            return self._over_if_stopped()
        if worked:
            detail = event.verdict or "its ranks were stopped"
            self.last.blame.failed(node, detail, victim=event.victim)
            return self._nodes_down([node], self._named(node, detail))
        if reason := self.roster.barred(node):
            return self._dismiss(node, m.Outcome.EXCLUDED, reason)
        return self._finish_if_done()

    def _exclusion_requested(self, event: m.ExclusionRequested) -> list[m.Command]:
        said = f": {event.description}" if event.description else ""
        reason = f"a rank on node {event.node} asked for its node to be excluded{said}"
        self.roster.excluded[event.node] = reason
        return self._bar_member(event.node, reason, self._grace_s(GRACE_ON_REQUEST_S))

    def _ordered(self, event: m.Ordered) -> list[m.Command]:
        match event:
            case m.ExclusionOrdered():
                return self._exclusion_ordered(event)
            case m.LimitsOrdered():
                return self._limits_ordered(event)
            case m.RestartOrdered():
                return self._restart_ordered(event)
        return self._stop_ordered(event)

    def _exclusion_ordered(self, event: m.ExclusionOrdered) -> list[m.Command]:
        """Go on without a node if that is possible; it counts as no failure, and costs no restart.

        Other than a rank, somebody may be wrong about the node, or about how many are left.
        """
        node, reason = event.target, f"{event.by} asked to go on without node {event.target}"
        if self.roster.excluded.get(node) == reason:
            return []  # it has been carried out; another leader hears of it again
        if node not in self.roster.here or self.roster.barred(node):
            who = name_some(info.name for info in self.roster.candidates())
            return [m.Say(f"{reason}: it is not in the job, which has {who}", refused=True)]
        takes_part = self._takes_part(node)
        needed = takes_part or node in self.formation.chosen or bool(self.few)
        enough = not needed or self._fits(without=[node])
        self.roster.excluded[node] = reason
        if not enough or self._hopeless() is not None:
            del self.roster.excluded[node]
            return [
                m.Say(f"{reason}: too few would be left; start a spare one before", refused=True)
            ]
        if not takes_part:
            return [m.Say(reason), *self._go_on_without(node, m.Outcome.EXCLUDED, reason)]
        if self.state is PolicyState.STOPPING:
            return [m.Say(f"{reason}: so it does once the round is stopped")]
        return self._another_round(reason, event)

    def _restart_ordered(self, event: m.RestartOrdered) -> list[m.Command]:
        reason = f"{event.by} asked for a restart"
        if event.round != self.round:
            return []  # stale
        match self.state:
            case PolicyState.RUNNING:
                return self._another_round(reason, event)
            case PolicyState.STOPPING:
                if (after := self.last.closing.ending) is not None:
                    return [m.Say(f"{reason}: the job ends, since {after.reason}", refused=True)]
                return [m.Say(f"{reason}: the round is being stopped already, and another follows")]
            case PolicyState.FORMING if self.pausing:
                self.pausing = False
                return [m.Say(f"{reason}: the pause before it is over"), *self._form()]
        waits = f"; it waits: {self.formation.describe()}" if self.formation.problem else ""
        begins = f"{reason}: round {self.next_round} is to begin anyway{waits}"
        return [m.Say(begins, refused=bool(waits))]

    def _stop_ordered(self, event: m.StopOrdered) -> list[m.Command]:
        """End the job: now, or as soon as nothing runs and there is a quorum."""
        if event.few:
            self.few = event.few
            ends = self._form() if self.state is PolicyState.FORMING else []
            return ends or [m.Say(f"the job ends if it must wait for nodes: {self.few}")]
        self.stop_ordered = self.stop_ordered or event
        reason = f"{event.by} asked for a stop"
        ending = Ending(m.Outcome.PREEMPTED if event.save else m.Outcome.NO_RESTART, reason)
        if self.running:
            return self._stop_round(reason, ending, agree="requested" if event.save else "")
        if self.last.closing.ending is not None:
            return [m.Say(f"{reason}: it ends already, since {self.last.closing.ending.reason}")]
        if self.state is not PolicyState.STOPPING and not self.no_quorum:
            return self._end(ending)
        when = "there is a quorum" if self.no_quorum else "its round is stopped"
        return [*self._instead_of_restart(ending), m.Say(f"{reason}: it ends once {when}")]

    def _another_round(
        self, reason: str, order: m.RestartOrdered | m.ExclusionOrdered
    ) -> list[m.Command]:
        """Nothing has failed, so this costs no restart."""
        return self._stop_round(reason, None, agree="restart" if order.save else "")

    def _limits_ordered(self, event: m.LimitsOrdered) -> list[m.Command]:
        known = {} if self.limits is None else self.limits.limits
        self.limits = m.NewLimits({**known, **event.limits}, event.by)
        return [m.NewLimits(event.limits, event.by)]

    def _shutdown_requested(self, event: m.ShutdownRequested) -> list[m.Command]:
        said = f": {event.description}" if event.description else ""
        reason = f"{event.by} on node {event.node} asked for a shutdown{said}"
        ending = Ending(m.Outcome.NO_RESTART, reason)
        if self.running:
            return self._stop_round(reason, ending)
        return self._instead_of_restart(ending)

    def _stop_wanted(self, event: m.StopWanted) -> list[m.Command]:
        of_rank = [place.node for place in self.places if place.has_any((event.rank,))]
        node, why = of_rank[0] if of_rank else event.node, event.why
        who = f"rank {event.rank} (node {node})"
        if why == "preempted":
            return self._leaves(event.node, 15, f"{who} was told to stop")
        outcome, text = _WISHES[why]
        reason = text.format(who) + event.said
        ending: Ending | None = Ending(outcome, reason)
        moves = why == "suspect" or (why == "straggler" and self.config.slow_ranks == "exclude")
        if moves:
            unwanted = Unwanted(event.rank, node, reason, outcome)
            ending = self._nowhere_else(unwanted)
            if all(each.otherwise is None for each in self.last.unwanted):
                self.last.unwanted.append(unwanted)
        if self.running:
            return self._stop_round(reason, ending, agree=why)
        return [] if moves else self._instead_of_restart(Ending(outcome, reason))

    def _cut_short(self, why: str) -> list[m.Command]:
        """Something has failed; if all were to stop together, the others need not be able to."""
        if self.last.stopping is None:
            return []
        grace_s = self._grace_s(GRACE_ON_REQUEST_S)
        return self._hurry(
            f"{why}, while all ranks were to stop", grace_s, self.last.stopping.agree
        )

    def _decided_to_stop(self, stopping: Stopping) -> list[m.Command]:
        """It is known after which iteration; where no rank asks, all get the signal."""
        if stopping.after == -1 and stopping.agree == "restart" and not self.roster.leaving:
            return self._hurry(self.last.closing.reason, self._grace_s(GRACE_ON_REQUEST_S))
        # A node that failed before stops at once, and may have passed that iteration.
        return self._stops_after(self.last.members.working)

    def _stops_after(self, nodes: Iterable[str]) -> list[m.Command]:
        """Tell nodes the iteration, once it is known."""
        after = None if self.last.stopping is None else self.last.stopping.after
        return [] if after is None else [m.StopAfter(node, self.round, after) for node in nodes]

    def _bar_member(self, node: str, reason: str, grace_s: float) -> list[m.Command]:
        """A node of this round was barred: the round stops, goes on without it, or ends the job."""
        self.last.blame.failed(node, reason)
        ending = self._hopeless(reason)
        if self.state is PolicyState.STOPPING:
            return [] if ending is None else self._instead_of_restart(ending)
        if node not in self.last.members.working:
            return []
        self.last.members.fail(node)
        if ending is not None and not self._enough_healthy():
            return self._stop_round(reason, ending, grace_s)
        return self._nodes_down([node], reason, grace_s, m.Outcome.EXCLUDED)

    # --- what follows ---------------------------------------------------------------------------

    def _nodes_down(
        self,
        nodes: Iterable[str],
        why: str,
        grace_s: float | None = None,
        outcome: m.Outcome = m.Outcome.FAILED,
    ) -> list[m.Command]:
        """Nodes do not work any more: go on without them, or restart, or end the job."""
        if grace_s is None:
            grace_s = self._grace_s(GRACE_AFTER_FAILURE_S)
        if not self._enough_healthy():
            return self._restart(why, grace_s, outcome)
        stops = self.last.members.stops(nodes, m.Stop("", self.round, why, grace_s))
        text = f"{why}; {self._healthy} go on"
        return [*stops, m.Say(text), *self._finish_if_done()]

    @property
    def _healthy(self) -> str:
        return f"{self.last.members.healthy} of {len(self.last.members)} nodes"

    def _enough_healthy(self) -> bool:
        """Whether the round goes on although a node of it does not work any more."""
        return self.config.min_healthy and self.last.members.healthy >= self.config.min_nodes

    def _restart(self, why: str, grace_s: float, outcome: m.Outcome) -> list[m.Command]:
        failed, limit, budget = outcome is m.Outcome.FAILED, self.config.max_restarts, ""
        if not self.restarts_left:
            budget = f"no restart is left of {limit}" if limit else "--max-restarts is 0"
        if budget := budget or self.intensity.spent:
            ending = Ending(outcome, f"{why}; {budget}", budget)
            return self._stop_round(why, ending, grace_s, failed=failed)
        self.restarts_used += 1
        timers = self.intensity.count(self.round)
        return [*timers, *self._stop_round(why, None, grace_s, counted=True, failed=failed)]

    def _finish_if_done(self) -> list[m.Command]:
        if self.last.members.working:
            return []
        reason = "every rank exited with 0"
        if self.last.members.finished < len(self.last.members):
            reason += f" on {self.last.members.finished} of {len(self.last.members)} nodes"
        if lost := self.last.members.lost_ranks:
            reason += f", but for {lost} " + ("that was lost" if lost == 1 else "lost ones")
        grace_s = self._grace_s(GRACE_AFTER_FAILURE_S)
        return self._stop_round("the work is done", Ending(m.Outcome.FINISHED, reason), grace_s)

    def _grace_s(self, by_cause_s: float) -> float:
        return by_cause_s if self.config.stop_timeout_s is None else self.config.stop_timeout_s

    # --- the leader's own events ----------------------------------------------------------------

    def _quorum_lost(self, event: m.QuorumLost) -> list[m.Command]:
        self.no_quorum = f"the job cannot go on: {event.reason}"
        if event.final and self.state is PolicyState.FORMING:
            ending = Ending(m.Outcome.TOO_FEW_NODES, self.no_quorum)
            return self._end(self.last.closing.ending or ending)
        if self.preparing:
            return self._form()
        if self.state is PolicyState.STOPPING:
            return self._hurry(self.no_quorum, event.grace_s)
        if not self.running:
            return []
        self.last.blame.lost("", self.no_quorum)
        # However much was asked for: others may start a round as soon as this time is over.
        if not event.counts:
            return self._stop_round(self.no_quorum, None, event.grace_s)
        return self._restart(self.no_quorum, event.grace_s, m.Outcome.FAILED)

    def _quorum_regained(self) -> list[m.Command]:
        self.no_quorum = ""
        self.roster.returning |= self.roster.lost  # it was the leader that was cut off
        if self.state is not PolicyState.FORMING:
            return []
        ending = self.last.closing.ending
        return self._form() if ending is None else self._end(ending)

    def _timer(self, event: m.TimerFired) -> list[m.Command]:
        upcoming = self.state in {PolicyState.FORMING, PolicyState.PREPARING}
        if event.round != (self.next_round if upcoming else self.round):
            return []
        match event.name, self.state:
            case "last_call", PolicyState.FORMING:
                self.formation.last_call_over()
                return self._form()
            case "return", PolicyState.FORMING:
                self.formation.return_over()
                return self._form()
            case "pause", PolicyState.FORMING:
                self.pausing = False
                return self._form()
            case "say", PolicyState.FORMING:
                return self.formation.say(event.round)
            case "join", PolicyState.FORMING:
                return self._form_timed_out()
            case "prepare", PolicyState.PREPARING:
                return self._prepare_timed_out(event.silent)
            case "joined", PolicyState.RUNNING:
                spares = [node for node in self.roster.here if node not in self.last.members.seats]
                said = m.Say(f"spare nodes: {name_some(spares)}")
                return self._grow() or ([said] if spares else [])
            case "slow", PolicyState.RUNNING:
                self.last.slowness.lasted = True  # the next times say whether the rank still steps
            case "evidence", PolicyState.RUNNING if self.last.examination is not None:
                self.last.examination.over = True  # if no suspect has failed, nothing need happen
            case "stop", PolicyState.STOPPING:
                return self._stop_timed_out()
        return []

    def _grow(self) -> list[m.Command]:
        """Take in nodes that have joined an elastic job."""
        if not self.config.elastic or self.last.members.finished:
            return []
        chosen = self.formation.choose(self.last.members.seats)
        now = len(self.last.members)
        then = 0 if isinstance(chosen, str) else len(chosen.places)
        if then <= now:
            return []
        reason = f"nodes have joined: the job grows from {now} to {then} nodes"
        return self._stop_round(reason, None, agree="restart")

    # --- towards the next round -----------------------------------------------------------------

    def _form(self) -> list[m.Command]:
        """Prepare the next round, or wait for nodes, or end where waiting is no use."""
        self.state = PolicyState.FORMING
        if self.pausing:
            return []
        seats = self.last.members.seats
        commands = self.formation.attempt(self.next_round, seats, held=self.no_quorum)
        if self.formation.chosen:
            self.state, self.gone = PolicyState.PREPARING, ""
            return commands
        ending = None
        if self.formation.problem and not self.no_quorum:
            ending = self._hopeless()
            if ending is None and self.gone and not self.formation.returning(seats):
                ending = Ending(m.Outcome.PREEMPTED, self.gone)  # the others are too few
        if ending is None and self.few and not self._fits():
            ending = self._too_few(f"no other node can come: {self.few}")
        return commands if ending is None else self._end(ending)

    def _pause(self) -> list[m.Command]:
        """Put the next round off if a restart is unlikely to help so soon."""
        closing, intensity = self.last.closing, self.intensity
        if not closing.uses_budget:
            return []
        pause_s = intensity.pause_s
        why = f"restart {len(intensity.recent)} in a short time (--restart-intensity)"
        if (again_s := growing_pause_s(closing.repeats - FREE_REPEATS)) > pause_s:
            pause_s = again_s
            why = f"{closing.repeats} failures were the same, with no progress between them"
        self.pausing = pause_s > 0
        if not self.pausing:
            return []
        said = m.Say(f"waiting {format_duration(pause_s)}: {why}", pause_s=pause_s)
        return [said, m.SetTimer("pause", self.next_round, pause_s)]

    def _fits(self, without: Collection[str] = ()) -> bool:
        """Whether the nodes that are there and stay are enough for a round."""
        return isinstance(self.formation.choose(self.last.members.seats, without), Placement)

    def _hopeless(self, reason: str = "") -> Ending | None:
        """Say whether too many nodes are excluded, the last one for ``reason``."""
        needed, barred = self.config.min_nodes, self.roster.all_barred
        if not barred:
            return None
        known = max(self.config.most_nodes, len(self.roster.seen | barred))
        if known - len(barred) >= needed or self._fits():
            return None
        reason = reason or self.roster.last_barred
        if known > 1:
            reason += f"; {len(barred)} of {known} nodes are excluded, {needed} are needed"
        return Ending(m.Outcome.EXCLUDED, reason)

    def _form_timed_out(self) -> list[m.Command]:
        """Nodes have been waited for long enough."""
        self.formation.last_call_over()
        self.formation.return_over()
        commands = self._form()
        if self.state is not PolicyState.FORMING:
            return commands
        limit = format_duration(self.formation.limit_s(self.next_round))
        why = f"nothing else came within {limit}: {self.formation.describe()}"
        return self._end(self._too_few(why))

    def _too_few(self, reason: str) -> Ending:
        """Return the end of a job that has not enough nodes, or the one decided before."""
        if self.last.closing.reason:
            cause = self.last.blame.first_cause
            why = self.last.closing.reason if cause is None else cause.text
            if why not in reason:
                reason += f"; round {self.round} had been stopped because of this: {why}"
        return self.last.closing.ending or Ending(m.Outcome.TOO_FEW_NODES, reason)

    def _prepare_timed_out(self, silent: Collection[str]) -> list[m.Command]:
        """The table has been waited for long enough: go on without nodes that do not confirm it."""
        limit = format_duration(self.config.join_timeout_s)
        if not silent:
            reason = f"round {self.next_round} could not be started within {limit}: no quorum has "
            reason += "confirmed that it knows the table, or an older round may still run"
            return self._end(Ending(m.Outcome.FAILED, reason))
        commands: list[m.Command] = []
        for node in silent:
            reason = f"node {node} has not confirmed the table of round {self.next_round} within "
            reason += f"{limit}, though it is heard of: start its launcher again"
            self.roster.unhealthy[node] = reason
            commands += self._dismiss(node, m.Outcome.EXCLUDED, reason)
        return commands + self._form()

    def _start(self, accepted: m.TableAccepted) -> list[m.Command]:
        """Start the round that has been prepared, unless one of the last round is back."""
        if self._has_place_for_more():
            return self._form()
        places = self.formation.chosen.values()
        self.formation.chosen = {}
        before, self.round = [*self.last.members.seats], self.next_round
        self.state = PolicyState.RUNNING
        goes_on = self._goes_on(before, [place.node for place in places])
        self.last, self.gone = Round(Members(places)), ""
        world_size = sum(place.slots for place in places)
        limits: list[m.Command] = [] if self.limits is None else [self.limits]
        starts = [
            m.Start(
                node=place.node,
                round=self.round,
                group_rank=place.group_rank,
                group_world_size=len(places),
                first_rank=place.first_rank,
                slots=place.slots,
                world_size=world_size,
                max_restarts=self.config.max_restarts,
                master_addr=accepted.master_addr,
                master_port=accepted.master_port,
                turned=self.turned % place.slots,
                failure=self.failure,
            )
            for place in places
        ]
        more = len(self.roster.here) > len(places)
        joined = m.SetTimer("joined", self.round, self.config.last_call_s)
        return [*goes_on, *starts, *limits, *([joined] if more else [])]

    def _has_place_for_more(self) -> bool:
        """Whether nodes of the last round have come back that belong into the next one."""
        chosen, roster = self.formation.chosen, self.roster
        if not any(node in roster.here and node not in chosen for node in self.last.members.seats):
            return False
        found = self.formation.choose(self.last.members.seats)
        return (
            isinstance(found, Placement) and {each.node for each in found.places} != chosen.keys()
        )

    def _goes_on(self, before: Collection[str], nodes: Collection[str]) -> list[m.Command]:
        """Say which nodes the round that begins is without, and who has their place."""
        gone, new = set(before).difference(nodes), set(nodes).difference(before)
        if not gone:
            return []
        how = f"{name_some(new)} in the place of {name_some(gone)}"
        if not new:
            how = f"without {name_some(gone)}, with {count(len(nodes), 'node')}"
        return [m.Say(f"the job goes on in round {self.round}: {how}")]

    # --- the end of a round ---------------------------------------------------------------------

    def _stop_round(
        self,
        reason: str,
        after: Ending | None,
        grace_s: float | None = None,
        *,
        signal: int = 15,
        counted: bool = False,
        agree: str = "",
        failed: bool = False,
    ) -> list[m.Command]:
        """Stop the round on all nodes.

        Args:
            reason: why.
            after: what follows, None = another round; nodes that leave must leave enough for it.
            grace_s: between signal and SIGKILL; None = as healthy ranks need.
            signal: for the ranks.
            counted: the restart uses the budget; it has been taken off already.
            agree: see `messages.Stop`.
            failed: see there.
        """
        if grace_s is None:
            agreed_s = self.config.term_timeout_s
            grace_s = agreed_s if agree else self._grace_s(GRACE_ON_REQUEST_S)
        self.state, self.last.examination = PolicyState.STOPPING, None
        self.last.stopping = Stopping(agree) if agree else None
        restart = after is None and (not self.roster.leaving or self._fits())
        self.last.closing = Closing(reason, after, restart, counted)
        action = "restart" if restart else "end"
        why = reason if after is None else after.reason
        commands: list[m.Command] = [m.Decided(self.round, action, why, self.restarts_left)]
        stop = m.Stop("", self.round, reason, grace_s, signal, agree, failed)
        commands += self.last.members.stops(self.last.members.seats, stop)
        commands.append(m.SetTimer("stop", self.round, grace_s + STOP_MARGIN_S))
        return commands + self._over_if_stopped()

    def _hurry(self, reason: str, grace_s: float, agree: str = "") -> list[m.Command]:
        """Leave less time to all nodes that have not stopped."""
        order = m.Stop("", self.round, reason, grace_s, agree=agree)
        return [replace(order, node=node) for node in self.last.members.unstopped]

    def _stop_timed_out(self) -> list[m.Command]:
        """Go on without nodes that do not report that they have stopped."""
        commands: list[m.Command] = []
        for node in list(self.last.members.unstopped):
            reason = f"node {node} has not reported in time that its ranks are stopped"
            self.roster.unhealthy[node] = reason
            self.last.members.lose(node)
            commands += self._dismiss(node, m.Outcome.EXCLUDED, reason)
        return commands + self._over_if_stopped()

    def _over_if_stopped(self) -> list[m.Command]:
        """Go on once nothing of the round is left anywhere."""
        if self.last.members.unstopped:
            return []
        closing = self.last.closing
        if closing.ends_as(m.Outcome.PREEMPTED) and self.last.members.all_ok:
            done = f"{closing.reason}, and every rank exited with 0"
            closing.ending = Ending(m.Outcome.FINISHED, done)
        finished = closing.ends_as(m.Outcome.FINISHED)
        commands: list[m.Command] = [] if finished else [*self.last.blame.news(self.round)]
        if closing.ending is None:
            closing.ending = self._no_next_round()
        if not finished:
            commands += self._advise()
        for unwanted in self.last.unwanted:
            if closing.ending is None and not self.no_quorum:
                closing.ending = self._move(unwanted)
        if closing.ending is None:
            return [*commands, *self._let_go(), *self._pause(), *self._form()]
        closing.ending = self._with_first_cause(closing.ending)
        if self.no_quorum and not finished:
            return [*commands, *self._let_go(), *self._form()]
        return commands + self._end(closing.ending)

    def _instead_of_restart(self, ending: Ending) -> list[m.Command]:
        """The round is being stopped already: do not start another one after it."""
        if self.last.closing.ending is not None:
            return []
        self.last.closing.ending = ending
        return self._call_off_restart(ending.reason)

    def _call_off_restart(self, reason: str) -> list[m.Command]:
        closing = self.last.closing
        if not closing.restart_said:
            return []
        self.restarts_used -= closing.uses_budget
        self.intensity.forget(self.round)
        closing.restart_said = closing.uses_budget = False
        return [m.Decided(self.round, "end", reason, self.restarts_left)]

    def _no_next_round(self) -> Ending | None:
        """Why the restart that was planned does not take place."""
        closing, members = self.last.closing, self.last.members
        leaving = next(iter(self.roster.leaving.values()), "")
        if not closing.restart_said:  # for nodes that leave, and of which some may be lost by now
            leaving = leaving or closing.reason
        if leaving:
            if members.all_ok:
                return Ending(m.Outcome.FINISHED, f"{leaving}, and every rank exited with 0")
            # Nodes that are back by now change nothing: ranks were told that the job ends.
            if not closing.restart_said or not self._fits():
                return Ending(m.Outcome.PREEMPTED, leaving)
        if not closing.uses_budget:
            return None
        if self._is_misuse:
            return Ending(m.Outcome.FAILED, f"{closing.reason}; {_MISUSE}", _MISUSE)
        stuck = self.tracker.round_over(self.round, members.iterations)
        return Ending(m.Outcome.NO_RESTART, stuck) if stuck else None

    def _advise(self) -> list[m.Command]:
        """Add the round to the history; if it failed, say what is best done, and perhaps do so."""
        if self.config.advise is None or self.no_quorum:
            return []
        last, closing = self.last, self.last.closing
        failed = closing.uses_budget or (closing.ending is not None and bool(closing.ending.budget))
        blamed = last.blame.verdict(self.round) if failed else None
        iterations = together(last.members.iterations)
        attempt = Attempt(
            round=self.round,
            nodes=tuple(last.members.seats),
            spare=len(self.roster.candidates()) - self.config.min_nodes,
            iteration=iterations.last,
            blamed=blamed,
            lost=blamed is not None and blamed.node in last.blame.losses,
            findings=last.blame.findings,
            left=last.blame.left_alone(),
            first=iterations.first,
        )
        advice = self.config.advise(self.history, attempt)
        self.history = advice.history if len(advice.history) <= MOST_HISTORY else b""
        self.failure, closing.repeats = advice.failure, advice.repeats
        problem = f"the history of earlier failures begins anew: {advice.problem}"
        commands: list[m.Command] = [m.Say(problem)] if advice.problem else []
        if (advised := advice.advised) is None:
            return commands
        acts = self.config.act or advised.cause in ALWAYS_ENDS
        done = acts and closing.ending is None
        if done and advised.action == "stop":
            closing.ending = Ending(m.Outcome.NO_RESTART, advised.reason)
        elif done:
            done = advised.action == "exclude" and self._leave_out(advised.nodes, advised.reason)
        return [*commands, replace(advised, done=done, failure=self.failure)]

    def _leave_out(self, nodes: Collection[str], reason: str) -> bool:
        """Bar nodes if there are any and enough are left for a round; return whether that is so."""
        if not nodes or not self._fits(without=nodes):
            return False
        for node in nodes:
            self.roster.excluded[node] = f"node {node} is left out: {reason}"
        return True

    @property
    def _is_misuse(self) -> bool:
        """Whether the program cannot be meant to run as it was called; a restart is of no use."""
        ends = {member.misuse for member in self.last.members.all.values()}
        begun = together(self.last.members.iterations).last is not None
        return self.round == 0 and True in ends and False not in ends and not begun

    def _with_first_cause(self, ending: Ending) -> Ending:
        """Name the first cause: the first report need not be about what happened first."""
        cause = self.last.blame.first_cause
        if cause is None or (self.last.stopping is None and not ending.budget):
            return ending
        why = self._named(cause.node, cause.line)
        if self.last.stopping is None:
            return Ending(ending.outcome, f"{why}; {ending.budget}")
        said = f"{ending.reason}; {why}, while all ranks were to stop"
        return Ending(ending.outcome, f"{said}: not all of them need have saved")

    def _named(self, node: str, line: str) -> str:
        """The event in words, with the node where there are several."""
        return line if len(self.last.members) == 1 else Cause(node, line).text

    def _let_go(self) -> list[m.Command]:
        """Between two rounds: dismiss nodes that take part no more, say what users should know."""
        commands: list[m.Command] = []
        for node, reason in list(self.roster.leaving.items()):
            self.gone = reason
            commands += self._dismiss(node, m.Outcome.PREEMPTED, reason)
        for node in self.last.members.seats:
            if node in self.roster.here and (barred := self.roster.barred(node)):
                commands += self._dismiss(node, m.Outcome.EXCLUDED, barred)
        members = self.last.members
        # Nodes that are lost take with them how far their ranks came: the next round will tell.
        knows = not any(member.lost for member in members.all.values())
        if knows and self.last.closing.uses_budget:
            text = self.tracker.to_say(members.iterations)
            commands += [m.Say(text)] if text else []
        return commands

    # --- the end --------------------------------------------------------------------------------

    def _dismiss(self, node: str, outcome: m.Outcome, reason: str) -> list[m.Command]:
        """The job goes on without a node on which nothing runs."""
        self.roster.go(node)
        return [m.End(node, outcome, reason)]

    def _end(self, ending: Ending) -> list[m.Command]:
        """End the job for everybody who is there."""
        commands = self._call_off_restart(ending.reason)
        self.state, self.ending = PolicyState.ENDED, ending
        ends = [m.End(node, ending.outcome, ending.reason) for node in self.roster.here]
        return [*commands, *ends]


def _as_answer(command: m.Command, order: m.Ordered) -> m.Command:
    """Return a command with the name of who has ordered it, where it can carry that."""
    match command:
        case m.Decided():
            purpose = order.purpose if isinstance(order, m.RestartOrdered) else ""
            return replace(command, by=order.by, purpose=purpose)
        case m.Say() | m.NewLimits() | m.End():
            return replace(command, by=order.by)
    return command
