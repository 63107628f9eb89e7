"""The nodes of one round, and how far each of them is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from undaunted.coordinator.core.progress import NO_ITERATIONS, Iterations

if TYPE_CHECKING:
    from collections.abc import Iterable

    from undaunted.coordinator.core.messages import NodeStopped, Place, Stop


@dataclass(slots=True)
class Member:
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
    """See the module's documentation. Every change takes constant time.

    Attributes:
        all: members by node, in the order of group ranks.
        seats: group ranks by node.
        working: nodes whose ranks run, as far as is known.
        unstopped: nodes that are there, and have not reported that they stopped.
        finished: how many nodes have finished.
        lost_ranks: how many ranks those went on without.
    """

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self.all = {place.node: Member(place) for place in places}
        self.seats = {node: member.place.group_rank for node, member in self.all.items()}
        self.working = dict.fromkeys(self.all)
        self.unstopped = dict.fromkeys(self.all)
        self.finished = self.lost_ranks = 0
        self._whole = dict.fromkeys(self.all)  # working, with all their ranks

    def __len__(self) -> int:
        return len(self.all)

    @property
    def healthy(self) -> int:
        """How many nodes have finished, or work with all their ranks."""
        return self.finished + len(self._whole)

    @property
    def all_ok(self) -> bool:
        """Whether every rank of the job had exited with 0 when its node stopped."""
        return all(member.all_ok for member in self.all.values())

    @property
    def iterations(self) -> list[Iterations]:
        """How far the round came, as each node knows it."""
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
