"""How rounds follow one another: forming, starting, stopping, ending. The mechanism below `policy`.

States::

    FORMING    waiting for enough nodes, or for a quorum
    PREPARING  the nodes of the next round are learning its table
    RUNNING    a round runs
    STOPPING   every node of the round has been told to stop; `Rounds.after` says what follows
    ENDED      the outcome is decided and sent; nothing changes it
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.base.text import format_duration
from undaunted.coordinator.core import messages as m
from undaunted.coordinator.core.blame import Blame, Cause
from undaunted.coordinator.core.formation import Formation
from undaunted.coordinator.core.members import Members
from undaunted.coordinator.core.placement import Placement
from undaunted.coordinator.core.progress import ProgressTracker

if TYPE_CHECKING:
    from collections.abc import Collection

    from undaunted.coordinator.core.config import PolicyConfig
    from undaunted.coordinator.core.roster import Roster

# How much longer than the grace a node may take to report that it has stopped: processes that
# cannot be killed, health checks and the wait for device memory are part of that.
STOP_MARGIN_S = 180.0
_MISUSE = (
    "not restarted: every rank that ended did so at once and with exit code 2, as programs do that "
    "are called with wrong arguments"
)


class State(enum.Enum):
    """See the module's documentation."""

    FORMING = enum.auto()
    PREPARING = enum.auto()
    RUNNING = enum.auto()
    STOPPING = enum.auto()
    ENDED = enum.auto()


@dataclass(frozen=True, slots=True)
class Ending:
    """How the job ends. ``budget``: why a failure is not followed by a restart."""

    outcome: m.Outcome
    reason: str
    budget: str = ""


@dataclass(slots=True)
class Rounds:
    """See the module's documentation.

    Attributes:
        config: the job's.
        state: see the module's documentation.
        round: the last one that was started, -1 = none.
        restarts_used: of the budget.
        prepared: the last one that another leader has prepared, and perhaps started somewhere.
        ending: how the job ended, None = it has not.
        formation: of the next round.
        members: of the last round.
        blame: for its end.
        tracker: of progress.
        after: how the job ends after it, None = another round follows.
        no_quorum: why nothing may be started, nor the job ended; "" = there is a quorum.
        gone: why nodes have left the job since the last round, "" = none has.
    """

    config: PolicyConfig
    state: State = State.FORMING
    round: int = -1
    restarts_used: int = 0
    prepared: int = -1
    ending: Ending | None = None
    formation: Formation = field(init=False)
    members: Members = field(default_factory=Members)
    blame: Blame = field(default_factory=Blame)
    tracker: ProgressTracker = field(init=False)
    after: Ending | None = None
    no_quorum: str = ""
    gone: str = ""
    _why: str = ""  # the last round was stopped
    _announced: bool = False  # a restart, and it has not begun
    _counted: bool = False  # and it uses the budget

    def __post_init__(self) -> None:
        """Begin with nothing known."""
        c = self.config
        self.formation = Formation(c)
        limits = (c.max_no_progress_cycles, c.min_progress_iterations)
        self.tracker = ProgressTracker(*limits, max_restarts=c.max_restarts)

    @property
    def next_round(self) -> int:
        """Number of the next round."""
        return max(self.round, self.prepared) + 1

    @property
    def roster(self) -> Roster:
        """Who is known."""
        return self.formation.roster

    @property
    def in_round(self) -> bool:
        """Whether reports about the round matter."""
        return self.state in {State.RUNNING, State.STOPPING}

    @property
    def restarts_left(self) -> int:
        """Restarts the job may still take."""
        return max(0, self.config.max_restarts - self.restarts_used)

    # --- towards the next round -----------------------------------------------------------------

    def form(self) -> list[m.Command]:
        """Prepare the next round, or wait for nodes, or end where waiting is no use."""
        self.state = State.FORMING
        seats = self.members.seats
        commands = self.formation.attempt(self.next_round, seats, held=self.no_quorum)
        if self.formation.prepared:
            self.state = State.PREPARING
        elif self.formation.problem and not self.no_quorum:
            ending = self.hopeless() or self._deserted()
            return commands if ending is None else self.end(ending)
        return commands

    def fits(self) -> bool:
        """Whether the nodes that are there and stay are enough for a round."""
        return isinstance(self.formation.choose(self.members.seats), Placement)

    def hopeless(self, reason: str = "") -> Ending | None:
        """Say whether too many nodes are excluded, the last one for ``reason``."""
        needed, barred = self.config.min_nodes, self.roster.all_barred
        if not barred:
            return None
        known = max(self.config.most_nodes, len(self.roster.seen | barred))
        if known - len(barred) >= needed or self.fits():
            return None
        reason = reason or self.roster.last_barred
        if known > 1:
            reason += f"; {len(barred)} of {known} nodes are excluded, {needed} are needed"
        return Ending(m.Outcome.EXCLUDED, reason)

    def _deserted(self) -> Ending | None:
        """Nodes have left in order, and the others are too few: they are not waited for."""
        if not self.gone or self.formation.returning(self.members.seats):
            return None
        return Ending(m.Outcome.PREEMPTED, self.gone)

    def form_timed_out(self) -> list[m.Command]:
        """Nodes have been waited for long enough."""
        self.formation.last_call_over()
        self.formation.return_over()
        commands = self.form()
        if self.state is not State.FORMING:
            return commands
        limit = format_duration(self.formation.limit_s(self.next_round))
        reason = f"nothing else came within {limit}: {self.formation.describe()}"
        if self._why:
            cause = self.blame.first_cause
            why = self._why if cause is None else cause.text
            reason += f"; round {self.round} had been stopped because of this: {why}"
        return self.end(self.after or Ending(m.Outcome.FAILED, reason))

    def prepare_timed_out(self, silent: Collection[str]) -> list[m.Command]:
        """The table has been waited for long enough: go on without nodes that do not confirm it."""
        limit = format_duration(self.config.join_timeout_s)
        if not silent:
            reason = f"round {self.next_round} could not be started within {limit}: no quorum has "
            reason += "confirmed that it knows the table, or an older round may still run"
            return self.end(Ending(m.Outcome.FAILED, reason))
        commands: list[m.Command] = []
        for node in silent:
            reason = f"node {node} has not confirmed the table of round {self.next_round} within "
            reason += f"{limit}, though it is heard of: start its launcher again"
            self.roster.unhealthy[node] = reason
            commands += self.dismiss(node, m.Outcome.EXCLUDED, reason)
        return commands + self.form()

    def start(self, accepted: m.TableAccepted) -> list[m.Command]:
        """Start the round that has been prepared."""
        places = self.formation.prepared.values()
        self.formation.prepared = {}
        self.round = self.next_round
        self.state = State.RUNNING
        self.members = Members(places)
        self.blame = Blame()
        self.after, self.gone, self._why = None, "", ""
        self._announced = self._counted = False
        world_size = sum(place.slots for place in places)
        return [
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
            )
            for place in places
        ]

    # --- the end of a round ---------------------------------------------------------------------

    def stop_round(
        self,
        reason: str,
        after: Ending | None,
        grace_s: float,
        *,
        signal: int = 15,
        counted: bool = False,
    ) -> list[m.Command]:
        """Stop the round on all nodes.

        Args:
            reason: why.
            after: what follows, None = another round; nodes that leave must leave enough for it.
            grace_s: between signal and SIGKILL.
            signal: for the ranks.
            counted: the restart uses the budget; it has been taken off already.
        """
        self.state = State.STOPPING
        self.after, self._why, self._counted = after, reason, counted
        self._announced = after is None and (not self.roster.leaving or self.fits())
        action = "restart" if self._announced else "end"
        why = reason if after is None else after.reason
        commands: list[m.Command] = [m.Decided(self.round, action, why, self.restarts_left)]
        commands += self.stops(reason, grace_s, signal)
        commands.append(m.SetTimer("stop", self.round, grace_s + STOP_MARGIN_S))
        return commands + self.over_if_stopped()

    def stops(self, reason: str, grace_s: float, signal: int = 15) -> list[m.Stop]:
        """Orders for all nodes that have not stopped."""
        return self.members.stops(self.members.seats, self.round, reason, grace_s, signal)

    def hurry(self, reason: str, grace_s: float) -> list[m.Stop]:
        """Orders that leave less time to all nodes that have not stopped."""
        return [m.Stop(node, self.round, reason, grace_s) for node in self.members.unstopped]

    def stop_timed_out(self) -> list[m.Command]:
        """Go on without nodes that do not report that they have stopped."""
        commands: list[m.Command] = []
        for node in list(self.members.unstopped):
            reason = f"node {node} has not reported in time that its ranks are stopped"
            self.roster.unhealthy[node] = reason
            self.members.lose(node)
            commands += self.dismiss(node, m.Outcome.EXCLUDED, reason)
        return commands + self.over_if_stopped()

    def over_if_stopped(self) -> list[m.Command]:
        """Go on once nothing of the round is left anywhere."""
        if self.members.unstopped:
            return []
        finished = self.after is not None and self.after.outcome is m.Outcome.FINISHED
        blamed = None if finished else self.blame.verdict(self.round)
        commands: list[m.Command] = [] if blamed is None else [blamed]
        if self.after is None:
            self.after = self._no_next_round()
        if self.after is None:
            return [*commands, *self._let_go(), *self.form()]
        self.after = self._with_first_cause(self.after)
        if self.no_quorum and not finished:
            return [*commands, *self._let_go(), *self.form()]
        return commands + self.end(self.after)

    def instead_of_restart(self, ending: Ending) -> list[m.Command]:
        """The round is being stopped already: do not start another one after it."""
        if self.after is not None:
            return []
        self.after = ending
        return self._call_off_restart(ending.reason)

    def _call_off_restart(self, reason: str) -> list[m.Command]:
        if not self._announced:
            return []
        self.restarts_used -= self._counted
        self._announced = self._counted = False
        return [m.Decided(self.round, "end", reason, self.restarts_left)]

    def _no_next_round(self) -> Ending | None:
        """Why the restart that was planned does not take place."""
        leaving = next(iter(self.roster.leaving.values()), "")
        if leaving:
            if all(member.all_ok for member in self.members.all):
                done = f"{leaving}, and every rank exited with 0"
                return Ending(m.Outcome.FINISHED, done)
            if not self.fits():
                return Ending(m.Outcome.PREEMPTED, leaving)
        if self._counted and self._is_misuse:
            return Ending(m.Outcome.FAILED, f"{self._why}; {_MISUSE}", _MISUSE)
        if self._counted:
            seen = [member.iterations for member in self.members.all]
            if stuck := self.tracker.round_over(self.round, seen):
                return Ending(m.Outcome.NO_RESTART, stuck)
        return None

    @property
    def _is_misuse(self) -> bool:
        """Whether the program cannot be meant to run as it was called; a restart is of no use."""
        ends = {member.misuse for member in self.members.all}
        begun = any(member.iterations.last is not None for member in self.members.all)
        return self.round == 0 and True in ends and False not in ends and not begun

    def _with_first_cause(self, ending: Ending) -> Ending:
        """What was reported first need not be what happened first."""
        cause = self.blame.first_cause
        if not ending.budget or cause is None:
            return ending
        return Ending(ending.outcome, f"{self.told(cause)}; {ending.budget}")

    def told(self, cause: Cause) -> str:
        """What happened, with the node where there are several."""
        return cause.line if len(self.members) == 1 else cause.text

    def _let_go(self) -> list[m.Command]:
        """Between two rounds: dismiss who does not take part any more, say what is remarkable."""
        commands: list[m.Command] = []
        for node, reason in list(self.roster.leaving.items()):
            self.gone = reason
            commands += self.dismiss(node, m.Outcome.PREEMPTED, reason)
        for node in [node for node in self.members.seats if self.roster.barred(node)]:
            if node in self.roster.here:
                commands += self.dismiss(node, m.Outcome.EXCLUDED, self.roster.barred(node))
        seen = [member.iterations for member in self.members.all]
        if self._counted and (text := self.tracker.remark(seen)):
            commands.append(m.Remark(text))
        return commands

    # --- the end --------------------------------------------------------------------------------

    def dismiss(self, node: str, outcome: m.Outcome, reason: str) -> list[m.Command]:
        """The job goes on without a node on which nothing runs."""
        self.roster.go(node)
        return [m.End(node, outcome, reason)]

    def end(self, ending: Ending) -> list[m.Command]:
        """End the job for everybody who is there."""
        commands = self._call_off_restart(ending.reason)
        self.state, self.ending = State.ENDED, ending
        ends = [m.End(node, ending.outcome, ending.reason) for node in self.roster.here]
        return [*commands, *ends]
