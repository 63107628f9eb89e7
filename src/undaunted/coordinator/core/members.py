"""The nodes of one round, and how far each of them is. Every change takes constant time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.coordinator.core.messages import Stop
from undaunted.coordinator.core.progress import NO_ITERATIONS, Iterations

if TYPE_CHECKING:
    from collections.abc import Iterable, KeysView

    from undaunted.coordinator.core.messages import Place


@dataclass(slots=True)
class Member:
    """A node's part in the round.

    Attributes:
        place: which ranks it has.
        finished: every rank exited with 0.
        lost: nobody hears of it any more; whatever it reports later tells only who is to blame.
        all_ok: when it stopped, every rank had exited with 0.
        iterations, misuse: known once it has stopped, see `messages.NodeStopped`.
        signals: that its ranks were told to stop by.
    """

    place: Place
    finished: bool = False
    lost: bool = False
    all_ok: bool = False
    iterations: Iterations = NO_ITERATIONS
    misuse: bool | None = None
    signals: set[int] = field(default_factory=set)


class Members:
    """See the module's documentation.

    Attributes:
        seats: group ranks by node.
        lost_ranks: how many nodes that have finished went on without.
    """

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self._all = {place.node: Member(place) for place in places}
        self.seats = {node: member.place.group_rank for node, member in self._all.items()}
        self._running = dict.fromkeys(self._all)  # neither finished nor failed, stopped or lost
        self._whole = dict.fromkeys(self._all)  # running, with all their ranks
        self._unstopped = dict.fromkeys(self._all)  # processes may be left, and it will report
        self._finished = 0
        self.lost_ranks = 0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def all(self) -> Iterable[Member]:
        """In the order of group ranks."""
        return self._all.values()

    @property
    def unstopped(self) -> KeysView[str]:
        """Nodes that have not reported that they stopped, and are there."""
        return self._unstopped.keys()

    @property
    def any_runs(self) -> bool:
        """Whether a node still works."""
        return bool(self._running)

    @property
    def finished(self) -> int:
        """How many nodes have finished."""
        return self._finished

    @property
    def healthy(self) -> int:
        """How many nodes have finished, or work with all their ranks."""
        return self._finished + len(self._whole)

    def works(self, node: str) -> bool:
        """Whether ranks of the node run, as far as is known."""
        return node in self._running

    def has_finished(self, node: str) -> bool:
        """Whether every rank of the node has exited with 0."""
        return self._all[node].finished

    def is_there(self, node: str) -> bool:
        """Whether the node takes part and has not been lost."""
        return node in self._all and not self._all[node].lost

    def finish(self, node: str, lost_ranks: int = 0) -> None:
        """Every rank of the node exited with 0, but for some that others went on without."""
        member = self._all[node]
        if node in self._running:
            self.fail(node)
            member.finished = member.all_ok = True
            self._finished += 1
            self.lost_ranks += lost_ranks

    def lose_rank(self, node: str) -> None:
        """The node goes on without one of its ranks."""
        self._whole.pop(node, None)

    def fail(self, node: str) -> None:
        """The node's ranks do not work any more."""
        self._running.pop(node, None)
        self._whole.pop(node, None)

    def stop(
        self, node: str, *, all_ok: bool, iterations: Iterations, misuse: bool | None = None
    ) -> None:
        """No process is left on the node."""
        if all_ok:
            self.finish(node)
        member = self._all[node]
        member.all_ok, member.iterations, member.misuse = all_ok, iterations, misuse
        self._unstopped.pop(node, None)
        self.fail(node)

    def lose(self, node: str) -> None:
        """The node does not answer any more."""
        self.fail(node)
        self._all[node].lost = True
        self._unstopped.pop(node, None)

    def stops(
        self, nodes: Iterable[str], number: int, reason: str, grace_s: float, signal: int
    ) -> list[Stop]:
        """Orders to stop round ``number`` on ``nodes``, for those that have not stopped.

        Nobody gets the same signal once more: it would interrupt what a handler does about the
        first.
        """
        told = [
            node
            for node in nodes
            if node in self._unstopped and signal not in self._all[node].signals
        ]
        for node in told:
            self._all[node].signals.add(signal)
        return [Stop(node, number, reason, grace_s, signal) for node in told]
