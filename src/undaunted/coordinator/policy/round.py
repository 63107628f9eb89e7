"""One round: its nodes and how far each of them is, who is slow, when ranks stop, how it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from undaunted.coordinator.policy.messages import NO_ITERATIONS, Iterations
from undaunted.coordinator.policy.verdict import Blame

if TYPE_CHECKING:
    from collections.abc import Iterable

    from undaunted.coordinator.policy.config import Pace
    from undaunted.coordinator.policy.messages import (
        NodeStopped,
        Outcome,
        Place,
        RanksAsked,
        Slow,
        Stop,
    )
    from undaunted.coordinator.policy.verdict import Examination

LEAST_LOST = 0.1  # share of the time that a rank costs; nothing is done about less
MOST_EXCLUDED = 3  # nodes of a job, for whatever reason; then none is left out for being slow


@dataclass(slots=True)
class Part:
    """A node's part in the round.

    Attributes:
        place: which ranks it has.
        finished: every rank exited with 0.
        lost: nobody hears of it any more; later reports only say who is to blame.
        all_ok: when it stopped, every rank had exited with 0.
        iterations, misuse: known once it has stopped, see `messages.NodeStopped`.
        signals: with which its ranks were told to stop.
        gone_on: how often it was told to go on after a hang.
    """

    place: Place
    finished: bool = False
    lost: bool = False
    all_ok: bool = False
    iterations: Iterations = NO_ITERATIONS
    misuse: bool | None = None
    signals: set[int] = field(default_factory=set)
    gone_on: int = 0


class Members:
    """The nodes of a round. Every change takes constant time.

    Attributes:
        all: members by node, in the order of group ranks.
        seats: group ranks by node.
        working: nodes whose ranks run, as far as is known.
        unstopped: nodes that are there, and have not reported that they stopped.
        finished: how many nodes have finished.
        lost_ranks: how many ranks those went on without.
    """

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self.all = {place.node: Part(place) for place in places}
        self.seats = {node: member.place.group_rank for node, member in self.all.items()}
        self.working = dict.fromkeys(self.all)
        self.unstopped = dict.fromkeys(self.all)
        self.finished = self.lost_ranks = 0
        self._whole = dict.fromkeys(self.all)  # working, with all their ranks

    def __len__(self) -> int:
        return len(self.all)

    @property
    def healthy(self) -> int:
        """Return how many nodes have finished, or work with all their ranks."""
        return self.finished + len(self._whole)

    @property
    def all_ok(self) -> bool:
        """Return whether every rank of the job had exited with 0 when its node stopped."""
        return all(member.all_ok for member in self.all.values())

    @property
    def iterations(self) -> list[Iterations]:
        """Return how far the round came, as each node knows it."""
        return [member.iterations for member in self.all.values()]

    def finish(self, node: str, lost_ranks: int = 0) -> None:
        """Every rank of the node exited with 0, but for some that others went on without."""
        if node in self.working:
            self.fail(node)
            member = self.all[node]
            member.finished = member.all_ok = True
            self.finished += 1
            self.lost_ranks += lost_ranks

    def lose_rank(self, node: str) -> None:
        """The node goes on without one of its ranks."""
        self._whole.pop(node, None)

    def fail(self, node: str) -> None:
        """The node's ranks do not work any more."""
        self.working.pop(node, None)
        self._whole.pop(node, None)

    def stop(self, event: NodeStopped) -> None:
        """No process is left on the node."""
        if event.all_ok:
            self.finish(event.node)
        member = self.all[event.node]
        member.all_ok, member.iterations = event.all_ok, event.iterations
        member.misuse = event.misuse
        self.unstopped.pop(event.node, None)
        self.fail(event.node)

    def lose(self, node: str) -> None:
        """The node does not answer any more."""
        self.fail(node)
        member = self.all[node]
        member.lost = True
        if node in self.unstopped:  # how far its ranks came, it has not said
            member.iterations = Iterations(problem=f"node {node} is lost")
        self.unstopped.pop(node, None)

    def stops(self, nodes: Iterable[str], order: Stop) -> list[Stop]:
        """An order to stop for each of ``nodes`` that has not stopped.

        Nobody gets the same signal once more: it would interrupt what a handler does about the
        first.
        """
        unstopped = [node for node in nodes if node in self.unstopped]
        told = [node for node in unstopped if order.signal not in self.all[node].signals]
        for node in told:
            self.all[node].signals.add(order.signal)
        return [replace(order, node=node) for node in told]


@dataclass(slots=True)
class Stopping:
    """After which iteration the ranks of a round stop: see docs/design/training.md.

    Attributes:
        agree: why all of them stop, see `messages.Stop`.
        after: the iteration, None = not known yet, -1 = no rank asks.
    """

    agree: str
    after: int | None = None
    _asked: dict[str, RanksAsked] = field(default_factory=dict)

    def take(self, report: RanksAsked) -> None:
        """Note what ranks of a node have asked about."""
        self._asked[report.node] = report

    def decide(self, nodes: Iterable[str]) -> bool:
        """Choose the iteration if all these nodes have reported; return whether it was chosen now.

        The choice of an earlier leader stays. Else it is the first that nobody has asked about.
        """
        nodes = tuple(nodes)
        if self.after is not None or not nodes or any(node not in self._asked for node in nodes):
            return False
        reports = [report for report in self._asked.values() if report.asks]
        fixed = [report.iteration for report in reports if report.fixed]
        asked = [report.iteration for report in reports if not report.fixed]
        self.after = max(fixed) if fixed else max(asked, default=-2) + 1
        return True


@dataclass(slots=True)
class Slowness:
    """Ranks that have been slow for long.

    An action against them costs a restart and the work since the last checkpoint. So it takes
    ranks that cost enough, of one node only, and the same ones for as long as the user has chosen.

    Attributes:
        ranks: that are slow now, and cost enough.
        lasted: they have been the same ones for as long as the user has chosen.
        said: that their node is kept all the same.
    """

    ranks: dict[int, Slow] = field(default_factory=dict)
    lasted: bool = False
    said: bool = False

    def note(self, news: Iterable[Slow]) -> bool:
        """Take in what is new; return whether the time begins anew."""
        changed = False
        for slow in news:
            counts = not slow.over and slow.lost >= LEAST_LOST
            changed = changed or counts != (slow.rank in self.ranks)
            self.ranks.pop(slow.rank, None)
            if counts:
                self.ranks[slow.rank] = slow
        if not changed:
            return False
        self.lasted = self.said = False
        return bool(self.ranks)

    @property
    def worst(self) -> Slow | None:
        """The rank that costs the most, if it has lasted and slow ranks are on one node only."""
        if not self.lasted or len({slow.node for slow in self.ranks.values()}) != 1:
            return None
        return max(self.ranks.values(), key=lambda slow: slow.lost)


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of the job. ``budget``: why a failure is not followed by a restart."""

    outcome: Outcome
    reason: str
    budget: str = ""


@dataclass(frozen=True, slots=True)
class Unwanted:
    """A rank whose work is done somewhere else from the next round on, if that is possible.

    Attributes:
        rank, node: which one it is, and where.
        why: for people.
        otherwise: how the job ends if there is no other place for it; None = it stays there.
        lost: the share of the time that it costs, if that is all that is wrong with it.
    """

    rank: int
    node: str
    why: str
    otherwise: Outcome | None = None
    lost: float = 1.0


@dataclass(slots=True)
class Closing:
    """The reason for which a round is stopped, and what follows.

    Attributes:
        reason: why; "" = it has not been stopped.
        ending: how the job ends after it, None = another round follows.
        restart_said: a restart was announced and has not begun.
        uses_budget: that restart counts.
        repeats: how often the job has failed so, with no progress in between; 0 = not known.
    """

    reason: str = ""
    ending: Ending | None = None
    restart_said: bool = False
    uses_budget: bool = False
    repeats: int = 0

    def ends_as(self, outcome: Outcome) -> bool:
        """Return whether the job ends after it, with this outcome."""
        return self.ending is not None and self.ending.outcome is outcome


@dataclass(slots=True)
class Round:
    """The knowledge of one round.

    Attributes:
        members: its nodes.
        blame: what ended it.
        examination: while all nodes are looked at, since a limit was passed.
        stopping: its ranks stop after the same iteration; None = they need not.
        pace: says who is slow; None = no times have come.
        slowness: who has been slow for long.
        unwanted: ranks that work elsewhere from the next round on: at most one that is slow, and
            one whose result may be wrong.
        closing: how it ends.
    """

    members: Members = field(default_factory=Members)
    blame: Blame = field(default_factory=Blame)
    examination: Examination | None = None
    stopping: Stopping | None = None
    pace: Pace | None = None
    slowness: Slowness = field(default_factory=Slowness)
    unwanted: list[Unwanted] = field(default_factory=list)
    closing: Closing = field(default_factory=Closing)
