"""A job in the simulator: machines, guards, ranks, and what can be done to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.inprocess.invariants import Checker
from simulator.inprocess.node import LEAD, MOVED, Node
from simulator.inprocess.rank import Rank
from simulator.run import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.inprocess.setup import Setup
    from undaunted.inprocess.core.reading import Phase

_MS = 1_000_000
_NS = 1_000_000_000
# What comes after the last fault.
_LAST_CALLS = 2


class Cluster(World):
    """See the module's documentation.

    Attributes:
        checker: told of everything that the invariants are about.
        ranks: the newest process of every job rank.
        leader: where the controller is, or will be.
        quiet: no fault is to come.
        aims: called when a rank of that number changes its phase to that one, once.
    """

    def __init__(
        self, setup: Setup, seed: int, *, trace: Callable[[int, str, Any], None] | None = None
    ) -> None:
        """Boot the machines; every rank starts within two seconds."""
        super().__init__(seed, trace)
        self.setup = setup
        self.checker = Checker(setup, self.simulation)
        self.ranks: dict[int, Rank] = {}
        self.nodes: dict[str, Node] = {}
        self.leader = setup.nodes[0]
        self.quiet = False
        self.aims: dict[tuple[int, Phase], list[Callable[[Any], None]]] = {}
        self._last_call = -1
        self._pids = 0
        for name in setup.nodes:
            self.simulation.boot(name)
            node = self.nodes[name] = Node(self, name)
            self.simulation.start(name, node, name)
        self.simulation.tell(self.leader, LEAD)
        for job_rank in range(setup.ranks):
            self.simulation.at(self.between(0, 2 * _NS), self._start, job_rank)

    def between(self, low: int, high: int) -> int:
        """Return a random number, from ``low`` to ``high``."""
        return self.simulation.random.randint(low, high)

    # --- ranks ----------------------------------------------------------------------------------

    def _start(self, job_rank: int, *, rejoin: bool = False) -> None:
        node = self.setup.node_of(job_rank)
        if not self.simulation.is_alive(node):
            return
        self._pids += 1
        rank = self.ranks[job_rank] = Rank(self, job_rank, self._pids, rejoin=rejoin)
        self.checker.started(rank)
        self.simulation.start(rank.name, rank, node)

    def more_calls(self, call: int) -> bool:
        """Whether a rank calls the function once more after this call."""
        if not self.quiet:
            return True
        if self._last_call < 0:
            self._last_call = call + _LAST_CALLS
        return call < self._last_call

    def kill(self, job_rank: int) -> None:
        """End its process."""
        rank = self.ranks.get(job_rank)
        if rank is None or not self.simulation.is_alive(rank.name):
            return
        self.checker.gone(rank)
        self.simulation.kill(rank.name)
        if self.setup.rejoin and not self.quiet:
            delay_ns = self.between(10 * _MS, 10 * _NS)
            self.after(delay_ns, lambda each: self._start(each, rejoin=True), job_rank)

    def signal(self, rank: Rank, *, kill: bool) -> None:
        """Its guard ends it; a SIGTERM may not suffice."""
        if (kill or self.between(0, 1)) and self.ranks.get(rank.job_rank) is rank:
            self.after(0, self.kill, rank.job_rank)

    def phase_changed(self, rank: Rank) -> None:
        """Something may be waiting for this."""
        for action in self.aims.pop((rank.job_rank, rank.phase), []):
            self.after(self.between(0, 3 * _MS), action)

    def pause_rank(self, job_rank: int) -> None:
        """Stop it as SIGSTOP does."""
        rank = self.ranks.get(job_rank)
        if rank is not None and rank.frozen_ns is None:
            rank.frozen_ns = self.simulation.now
            self.simulation.pause(rank.name)

    def resume_rank(self, job_rank: int) -> None:
        """Let it go on."""
        rank = self.ranks.get(job_rank)
        if rank is not None and not rank.stuck:
            rank.frozen_ns = None
            self.simulation.resume(rank.name)

    # --- guards ---------------------------------------------------------------------------------

    def kill_node(self, name: str) -> None:
        """End a guard; under `undaunted run`, its ranks die with it."""
        if not self.simulation.is_alive(name):
            return
        self.simulation.kill(name)
        self._node_gone(name, ranks_die=self.setup.moves)

    def power_off(self, name: str) -> None:
        """Take a machine's power; nobody is told."""
        if not self.simulation.is_alive(name):
            return
        for rank in self._ranks_of(name):
            self.checker.gone(rank)
        self.simulation.power_off(name)
        self._node_gone(name, ranks_die=False)

    def _ranks_of(self, name: str) -> list[Rank]:
        return [rank for rank in self.ranks.values() if rank.node == name]

    def _node_gone(self, name: str, *, ranks_die: bool) -> None:
        if ranks_die:
            for rank in self._ranks_of(name):
                self.checker.gone(rank)
                self.simulation.kill(rank.name)
        if name == self.leader and self.setup.moves:
            self.after(self.between(100 * _MS, 8 * _NS), self.move)

    def move(self, _argument: Any = None) -> None:
        """Another node leads, if any is left; the one that did has stood down."""
        alive = [name for name in self.setup.nodes if self.simulation.is_alive(name)]
        others = [name for name in alive if name != self.leader and self._can_lead(name, alive)]
        if not others:
            self.checker.touch_all()
            return
        before, self.leader = self.leader, others[self.between(0, len(others) - 1)]
        self.checker.takeovers += 1
        for name in alive:
            if name in {before, self.leader}:
                self.simulation.tell(name, LEAD if name == self.leader else MOVED)
            else:
                self.after(self.between(0, 500 * _MS), self._tell_moved, (name, self.leader))

    def _can_lead(self, name: str, alive: list[str]) -> bool:
        """Whether it reaches most of the others, who must agree."""
        reaches = self.simulation.reaches
        votes = sum(reaches(name, each) and reaches(each, name) for each in alive)
        return votes * 2 > len(alive)

    def _tell_moved(self, what: tuple[str, str]) -> None:
        name, leader = what
        if self.leader == leader:
            self.simulation.tell(name, MOVED)
