"""The job policy: one deterministic state machine for the whole job.

Events come from nodes, commands go to them (see `messages`). There is no clock, socket or thread in
here, so that the same code runs inside a single agent, behind a server, and in a simulator.

This module says what each event means; how rounds follow one another, and the states, are in
`rounds`. Reports about a round that is over are stale and ignored. When the job has ended, a node
that joins is told the outcome; nothing else is heard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.coordinator.core import messages as m
from undaunted.coordinator.core import placement
from undaunted.coordinator.core.blame import Cause
from undaunted.coordinator.core.config import PolicyConfig
from undaunted.coordinator.core.members import Members
from undaunted.coordinator.core.roster import name_some
from undaunted.coordinator.core.rounds import Ending, Rounds, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["JobPolicy", "PolicyConfig", "State"]

# SIGTERM to SIGKILL when nothing is lost by being quick: a peer is dead or hung, so the others
# wait in communication, where a Python-level SIGTERM handler cannot run.
GRACE_AFTER_FAILURE_S = 2.0
# The same when the ranks are healthy and may want to save something.
GRACE_ON_REQUEST_S = 15.0


@dataclass(slots=True)
class JobPolicy(Rounds):
    """See the module's documentation. Feed events to `handle`, carry out what it returns."""

    @classmethod
    def restored(
        cls,
        config: PolicyConfig,
        *,
        round: int,  # noqa: A002 - called so everywhere
        nodes: Iterable[m.NodeInfo],
        prepared: int = -1,
        restarts_used: int = 0,
        excluded: Mapping[str, str] | None = None,
        reached: int | None = None,
        stalled: Iterable[str] = (),
    ) -> JobPolicy:
        """Go on where another policy of the job stopped, with its round running.

        Args:
            config: the job's.
            round: its number.
            nodes: that take part in it, in the order of group ranks; feed NodeLost of those that
                are not there, NodeJoined of spares. None at all: it waits for nodes.
            prepared: highest number of a round that was prepared; it is not used again, since some
                node may have begun that round.
            restarts_used: see `Rounds`.
            excluded: see the property.
            reached: see `progress`.
            stalled: see `progress`.
        """
        policy = cls(config, round=round, restarts_used=restarts_used, prepared=prepared)
        known = list(nodes)
        policy.members = Members(placement.places(known))
        for node in known:
            policy.roster.join(node)
        policy.roster.excluded.update(excluded or {})
        policy.tracker.restore(reached, stalled)
        if known:
            policy.state = State.RUNNING
        return policy

    @property
    def ended(self) -> bool:
        """Whether the outcome is decided and sent."""
        return self.state is State.ENDED

    @property
    def running(self) -> bool:
        """Whether the round has been started and not stopped."""
        return self.state is State.RUNNING

    @property
    def preparing(self) -> bool:
        """Whether the nodes of the next round are chosen and learn its table."""
        return self.state is State.PREPARING

    @property
    def places(self) -> tuple[m.Place, ...]:
        """Of the last round that was started."""
        return tuple(member.place for member in self.members.all)

    @property
    def excluded(self) -> dict[str, str]:
        """Nodes that are not taken back, and why."""
        return self.roster.excluded

    @property
    def progress(self) -> tuple[int | None, tuple[str, ...]]:
        """The highest iteration reached, and one text per round in a row without progress."""
        return self.tracker.known

    def handle(self, event: m.Event) -> list[m.Command]:  # noqa: C901, PLR0912 - a case each
        """Take one event; return the commands it causes, in order."""
        if self.ending is not None:
            return self._too_late(event, self.ending)
        match event:
            case m.NodeJoined():
                return self._joined(event.info)
            case m.NodeLost():
                return self._lost(event)
            case m.NodeReturns(node=node):
                self.roster.returning.add(node)
                return []
            case m.TableAccepted():
                return self._accepted(event)
            case m.Preempted():
                return self._preempted(event)
            case m.NodeUnhealthy():
                return self._unhealthy(event)
            case m.QuorumLost():
                return self._quorum_lost(event)
            case m.QuorumRegained():
                return self._quorum_regained()
            case m.TimerFired():
                return self._timer(event)
        if not self.in_round or event.round != self.round or event.node not in self.members.seats:
            return []  # stale, or from a stranger
        match event:
            case m.NodeFailed():
                return self._failed(event)
            case m.RankLost():
                return self._rank_lost(event)
            case m.NodeFinished():
                return self._finished(event)
            case m.NodeStopped():
                return self._stopped(event)
            case m.ExclusionRequested():
                return self._exclusion_requested(event)
            case m.ShutdownRequested():
                return self._shutdown_requested(event)

    # --- nodes come and go ----------------------------------------------------------------------

    def _too_late(self, event: m.Event, ending: Ending) -> list[m.Command]:
        if not isinstance(event, m.NodeJoined):
            return []
        return [m.End(event.info.name, ending.outcome, ending.reason)]

    def _joined(self, info: m.NodeInfo) -> list[m.Command]:
        if info.name in self.roster.here:
            self.roster.here[info.name] = info
            return []
        if reason := self.roster.excluded.get(info.name):
            return [m.End(info.name, m.Outcome.EXCLUDED, reason)]
        self.roster.join(info)
        if self.state is State.FORMING:
            return self.form()
        if self.state is not State.RUNNING:
            return []
        return [m.SetTimer("joined", self.round, self.config.last_call_s)]

    def _lost(self, event: m.NodeLost) -> list[m.Command]:
        node = event.node
        self.roster.lose(node, returns=event.returns)
        if self.state is State.FORMING or node in self.formation.prepared:
            return self.form()
        if not self.in_round or node not in self.members.unstopped:
            return []  # it took no part, or had stopped
        worked, finished = self.members.works(node), self.members.has_finished(node)
        self.members.lose(node)
        if not finished:
            self.blame.lost(node, event.reason)
        if self.state is State.STOPPING:
            return self.over_if_stopped()
        return self._node_down(node, event.reason) if worked else self._finish_if_done()

    def _preempted(self, event: m.Preempted) -> list[m.Command]:
        node = event.node
        reason = f"the launcher on node {node} received {event.signal_name}"
        if not self._takes_part(node):
            alone = not (self.roster.here.keys() - {node})
            if self.state is not State.RUNNING and (alone or self.round >= 0):
                self.gone = reason
            return self._go_on_without(node, m.Outcome.PREEMPTED, reason)
        self.roster.leaving[node] = reason
        grace_s = self.config.term_timeout_s
        if self.state is State.RUNNING:
            return self.stop_round(reason, None, grace_s, signal=event.signal)
        return [*self.stops(reason, grace_s, event.signal)]

    def _unhealthy(self, event: m.NodeUnhealthy) -> list[m.Command]:
        node, reason = event.node, f"node {event.node} is unhealthy: {event.reason}"
        takes_part = self._takes_part(node)
        if takes_part and event.round != self.round:
            return []  # stale
        self.roster.unhealthy[node] = reason
        if takes_part:
            return self._bar(node, reason, self._grace_s(GRACE_AFTER_FAILURE_S))
        return self._go_on_without(node, m.Outcome.EXCLUDED, reason)

    def _takes_part(self, node: str) -> bool:
        """Whether the round must be over before the node can be dismissed."""
        if self.state is State.STOPPING and node in self.roster.here:
            return self.members.is_there(node)
        return self.state is State.RUNNING and node in self.members.unstopped

    def _go_on_without(self, node: str, outcome: m.Outcome, reason: str) -> list[m.Command]:
        """Nothing runs on the node: dismiss it at once."""
        commands = self.dismiss(node, outcome, reason)
        if self.state is State.FORMING or node in self.formation.prepared:
            commands += self.form()
        return commands

    # --- what happens in a round ----------------------------------------------------------------

    def _accepted(self, event: m.TableAccepted) -> list[m.Command]:
        if self.state is not State.PREPARING or event.round != self.next_round:
            return []
        joined = m.SetTimer("joined", self.next_round, self.config.last_call_s)
        more = len(self.roster.here) > len(self.formation.prepared)
        return [*self.start(event), *([joined] if more else [])]

    def _failed(self, event: m.NodeFailed) -> list[m.Command]:
        node = event.node
        self.blame.failed(node, event.detail, victim=event.victim)
        if self.state is not State.RUNNING or not self.members.works(node):
            return []  # the round, or this node's part of it, is being stopped already
        self.members.fail(node)
        return self._node_down(node, self.told(Cause(node, event.detail)))

    def _rank_lost(self, event: m.RankLost) -> list[m.Command]:
        if self.state is not State.RUNNING or not self.members.works(event.node):
            return []
        self.members.lose_rank(event.node)
        why = self.told(Cause(event.node, event.detail))
        if self._enough_healthy():
            return [m.Remark(f"{why}; {self._healthy} are left with all their ranks")]
        self.blame.failed(event.node, event.detail)
        return self._restart(why, self._grace_s(GRACE_AFTER_FAILURE_S), m.Outcome.FAILED)

    def _finished(self, event: m.NodeFinished) -> list[m.Command]:
        if self.state is not State.RUNNING:
            return []
        self.members.finish(event.node, event.lost)
        return self._finish_if_done()

    def _stopped(self, event: m.NodeStopped) -> list[m.Command]:
        node = event.node
        self.blame.judged(node, event.verdict, victim=event.victim)
        if node not in self.members.unstopped:
            return []
        worked = self.members.works(node) and not event.all_ok
        self.members.stop(
            node, all_ok=event.all_ok, iterations=event.iterations, misuse=event.misuse
        )
        if self.state is State.STOPPING:
            return self.over_if_stopped()
        if worked:
            detail = event.verdict or "its ranks were stopped"
            self.blame.failed(node, detail, victim=event.victim)
            return self._node_down(node, self.told(Cause(node, detail)))
        if reason := self.roster.barred(node):
            return self.dismiss(node, m.Outcome.EXCLUDED, reason)
        return self._finish_if_done()

    def _exclusion_requested(self, event: m.ExclusionRequested) -> list[m.Command]:
        said = f": {event.description}" if event.description else ""
        reason = f"a rank on node {event.node} asked for its node to be excluded{said}"
        self.roster.excluded[event.node] = reason
        return self._bar(event.node, reason, self._grace_s(GRACE_ON_REQUEST_S))

    def _shutdown_requested(self, event: m.ShutdownRequested) -> list[m.Command]:
        said = f": {event.description}" if event.description else ""
        reason = f"{event.by} on node {event.node} asked for a shutdown{said}"
        ending = Ending(m.Outcome.NO_RESTART, reason)
        if self.state is State.RUNNING:
            return self.stop_round(reason, ending, self._grace_s(GRACE_ON_REQUEST_S))
        return self.instead_of_restart(ending)

    def _bar(self, node: str, reason: str, grace_s: float) -> list[m.Command]:
        """A node of the round takes part in no other one."""
        self.blame.failed(node, reason)
        ending = self.hopeless(reason)
        if self.state is State.STOPPING:
            return [] if ending is None else self.instead_of_restart(ending)
        if not self.members.works(node):
            return []
        self.members.fail(node)
        if ending is not None and not self._enough_healthy():
            return self.stop_round(reason, ending, grace_s)
        return self._node_down(node, reason, grace_s, m.Outcome.EXCLUDED)

    # --- what follows ---------------------------------------------------------------------------

    def _node_down(
        self,
        node: str,
        why: str,
        grace_s: float | None = None,
        outcome: m.Outcome = m.Outcome.FAILED,
    ) -> list[m.Command]:
        """A node does not work any more: go on without it, or restart, or end the job."""
        if grace_s is None:
            grace_s = self._grace_s(GRACE_AFTER_FAILURE_S)
        if not self._enough_healthy():
            return self._restart(why, grace_s, outcome)
        stops = self.members.stops([node], self.round, why, grace_s, 15)
        text = f"{why}; {self._healthy} go on"
        return [*stops, m.Remark(text), *self._finish_if_done()]

    @property
    def _healthy(self) -> str:
        return f"{self.members.healthy} of {len(self.members)} nodes"

    def _enough_healthy(self) -> bool:
        """Whether the round goes on although a node of it does not work any more."""
        return self.config.min_healthy and self.members.healthy >= self.config.min_nodes

    def _restart(self, why: str, grace_s: float, outcome: m.Outcome) -> list[m.Command]:
        if self.restarts_left == 0:
            limit = self.config.max_restarts
            budget = f"no restart is left of {limit}" if limit else "--max-restarts is 0"
            ending = Ending(outcome, f"{why}; {budget}", budget)
            return self.stop_round(why, ending, grace_s)
        self.restarts_used += 1
        return self.stop_round(why, None, grace_s, counted=True)

    def _finish_if_done(self) -> list[m.Command]:
        if self.members.any_runs:
            return []
        reason = "every rank exited with 0"
        if self.members.finished < len(self.members):
            reason += f" on {self.members.finished} of {len(self.members)} nodes"
        if lost := self.members.lost_ranks:
            reason += (
                f", but for {lost} that was lost" if lost == 1 else f", but for {lost} lost ones"
            )
        grace_s = self._grace_s(GRACE_AFTER_FAILURE_S)
        return self.stop_round("the work is done", Ending(m.Outcome.FINISHED, reason), grace_s)

    def _grace_s(self, by_cause_s: float) -> float:
        return by_cause_s if self.config.stop_timeout_s is None else self.config.stop_timeout_s

    # --- the leader's own events ----------------------------------------------------------------

    def _quorum_lost(self, event: m.QuorumLost) -> list[m.Command]:
        self.no_quorum = f"no quorum: {event.reason}"
        if self.state is State.PREPARING:
            return self.form()
        if self.state is State.STOPPING:
            return [*self.hurry(self.no_quorum, GRACE_AFTER_FAILURE_S)]
        if self.state is not State.RUNNING:
            return []
        self.blame.lost("", self.no_quorum)
        # However much was asked for: others may start a round as soon as this time is over.
        return self._restart(self.no_quorum, GRACE_AFTER_FAILURE_S, m.Outcome.FAILED)

    def _quorum_regained(self) -> list[m.Command]:
        self.no_quorum = ""
        self.roster.returning |= self.roster.lost  # it was the leader that was cut off
        if self.state is not State.FORMING:
            return []
        return self.form() if self.after is None else self.end(self.after)

    def _timer(self, event: m.TimerFired) -> list[m.Command]:
        upcoming = self.state in {State.FORMING, State.PREPARING}
        if event.round != (self.next_round if upcoming else self.round):
            return []
        match event.name, self.state:
            case "last_call", State.FORMING:
                self.formation.last_call_over()
                return self.form()
            case "return", State.FORMING:
                self.formation.return_over()
                return self.form()
            case "remark", State.FORMING:
                return self.formation.remark(event.round)
            case "join", State.FORMING:
                return self.form_timed_out()
            case "prepare", State.PREPARING:
                return self.prepare_timed_out(event.silent)
            case "joined", State.RUNNING:
                return self._grow() or self._name_spares()
            case "stop", State.STOPPING:
                return self.stop_timed_out()
        return []

    def _grow(self) -> list[m.Command]:
        """Take in nodes that have joined an elastic job."""
        if not self.config.elastic or self.members.finished:
            return []
        chosen = self.formation.choose(self.members.seats)
        now = len(self.members)
        then = 0 if isinstance(chosen, str) else len(chosen.places)
        if then <= now:
            return []
        reason = f"nodes have joined: the job grows from {now} to {then} nodes"
        return self.stop_round(reason, None, self._grace_s(GRACE_ON_REQUEST_S))

    def _name_spares(self) -> list[m.Command]:
        spares = [node for node in self.roster.here if node not in self.members.seats]
        return [m.Remark(f"spare nodes: {name_some(spares)}")] if spares else []
