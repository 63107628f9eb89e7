"""The ranks of one agent: processes that live, end and hang in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.agent import node as n

if TYPE_CHECKING:
    from simulator.coordination.agent import Agent
    from simulator.coordination.cluster import Cluster

_MS = 1_000_000
_SIGKILL = 9
# Share of ranks that do not react to SIGTERM: they wait for a peer in communication.
_DEAF = 0.3


@dataclass(frozen=True, slots=True)
class RankEnded:
    """What the kernel tells an agent about a rank. ``victim``: it ended since a peer is gone."""

    round: int
    local_rank: int
    code: int
    victim: bool


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """Something else that happened on the node, for its state machine; ``round`` says when."""

    round: int
    event: n.Event


@dataclass(slots=True, eq=False)
class Ranks:
    """Of one round on one node. Nobody needs the agent to run for a rank to end."""

    cluster: Cluster
    agent: Agent
    round: int
    slots: int
    alive: set[int] = field(default_factory=set)
    deaf: set[int] = field(default_factory=set)
    over: bool = False  # none of them will be started any more

    def spawn(self) -> None:
        """Start all of them; that takes a moment."""
        self.cluster.after(self._between(20, 300), self._spawned, None)

    def _spawned(self, _: None) -> None:
        if self.over:
            return
        self.alive = set(range(self.slots))
        self.deaf = {rank for rank in self.alive if self.cluster.chance(_DEAF)}
        self.cluster.checker.up(self.agent.seat, self.round)
        self._tell(n.WorkersSpawned())
        self.cluster.ranks_are_up(self)

    def signal(self, local_ranks: tuple[int, ...], number: int) -> None:
        """Send a signal to some."""
        for rank in local_ranks:
            if number == _SIGKILL:
                self.end_later(rank, -number, self._between(1, 10))
            elif rank not in self.deaf:
                self.end_later(rank, -number, self._between(1, 500))

    def signal_all(self, number: int) -> None:
        """Send a signal to whatever there is; say when nothing is left."""
        self.signal(tuple(sorted(self.alive)), number)
        if number == _SIGKILL or not self.alive:
            self.cluster.after(self._between(11, 20), self._empty, None)

    def _empty(self, _: None) -> None:
        if not self.alive:
            self._tell(n.TreeEmpty())

    def end_later(self, rank: int, code: int, delay_ns: int, *, victim: bool = False) -> None:
        """Let a rank end after a while."""
        self.cluster.after(delay_ns, self._ended, (rank, code, victim))

    def _ended(self, what: tuple[int, int, bool]) -> None:
        rank, code, victim = what
        if rank not in self.alive:
            return
        self.alive.discard(rank)
        self.cluster.checker.down(self.agent.seat, self.round, rank)
        self.cluster.tell(self.agent, RankEnded(self.round, rank, code, victim))
        if code > 0 and not victim:
            self.cluster.peers_notice(self)

    def hang(self, rank: int) -> None:
        """Let a rank stand still; its limit passes some seconds later."""
        self.deaf.add(rank)
        self.cluster.after(self._between(1000, 5000), self._limit_passed, rank)

    def _limit_passed(self, rank: int) -> None:
        if rank in self.alive:
            self._tell(n.LimitPassed(rank, "no heartbeat"))

    def vanish(self) -> None:
        """The agent or the machine is gone, and so are they."""
        self.over = True
        if self.alive:
            self.alive.clear()
            self.cluster.checker.down(self.agent.seat, self.round)

    def _tell(self, event: n.Event) -> None:
        self.cluster.tell(self.agent, NodeEvent(self.round, event))

    def _between(self, low_ms: int, high_ms: int) -> int:
        return self.cluster.between(low_ms * _MS, high_ms * _MS)
