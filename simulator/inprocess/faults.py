"""Faults of a simulated job: a seeded plan of them, and how each is made."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from undaunted.inprocess.core.reading import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simulator.inprocess.cluster import Cluster
    from simulator.inprocess.setup import Setup

_MS = 1_000_000
_NS = 1_000_000_000

KINDS: dict[str, str] = {
    "raise": "the function raises",
    "leave": "a rank raises what is no Exception, or fails while it recovers",
    "block": "the function makes no progress, and can be interrupted",
    "swallow": "user code swallows the interrupt",
    "stick": "a rank stands still for ever, as in a call that cannot be interrupted",
    "kill": "a rank is killed",
    "stop": "a rank stands still for a while",
    "slow": "a rank takes long over everything for a while",
    "kill-guard": "a guard is killed",
    "power": "a machine loses power",
    "stop-guard": "a guard stands still for a while",
    "reset": "a guard's connection to the controller is reset",
    "cut": "a machine is cut off for a while",
    "move": "the controller is lost and another takes over, if one can",
}
_HARMLESS = frozenset({"raise", "block", "reset", "move"})
_FIRST_NS = 2 * _NS
_SPACING_S = 4.0
# Nothing that lasts may be as long as what makes a controller give up on everybody.
_LEADER_S = 8.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        at_ns: when, or from when on `phase` is waited for.
        kind: see `KINDS`.
        job_rank: whom it concerns, or whose guard and machine.
        phase: it happens when the rank is next in it; None = at once.
        lasts_ns: for how long; 0 = it does not last, or for ever.
    """

    at_ns: int
    kind: str
    job_rank: int
    phase: Phase | None = None
    lasts_ns: int = 0

    def __str__(self) -> str:
        text = f"{self.kind} {self.job_rank}"
        if self.phase is not None:
            text += f" when it is {self.phase.name}"
        return text + (f" for {self.lasts_ns / _NS:.1f} s" if self.lasts_ns else "")


def plan(setup: Setup, seed: int, kinds: Sequence[str], count: int) -> list[Fault]:
    """Make ``count`` faults of these kinds, the same for the same arguments."""
    chance = Random(f"plan {seed}")  # noqa: S311 - to be repeated
    at_ns, faults = _FIRST_NS, []
    for _ in range(count):
        if chance.random() < 0.6:  # otherwise two at once
            at_ns += int(chance.expovariate(1 / _SPACING_S) * _NS)
        kind = chance.choice(kinds)
        job_rank = chance.randrange(setup.ranks)
        phase = chance.choice((None, None, *Phase))
        lasts = kind in {"stop", "slow", "stop-guard", "cut"}
        lasts_ns = int((0.05 + 60 * chance.random() ** 4) * _NS) if lasts else 0
        faults.append(Fault(at_ns, kind, job_rank, phase, lasts_ns))
    return faults


class Nemesis:
    """Makes the faults of a plan, and undoes them."""

    def __init__(self, cluster: Cluster, faults: Sequence[Fault]) -> None:
        self._cluster = cluster
        self._simulation = cluster.simulation
        self._make: dict[str, Callable[[Fault], None]] = {
            "kill": lambda fault: cluster.kill(fault.job_rank),
            "stop": self._stop,
            "slow": self._slow,
            "kill-guard": lambda fault: cluster.kill_node(self._node(fault)),
            "power": lambda fault: cluster.power_off(self._node(fault)),
            "stop-guard": self._stop_guard,
            "reset": self._reset,
            "cut": self._cut,
            "move": self._move,
        }
        for fault in faults:
            self._simulation.at(fault.at_ns, self._aim, fault)

    def _aim(self, fault: Fault) -> None:
        if fault.phase is None:
            self._happen(fault)
        else:
            aims = self._cluster.aims.setdefault((fault.job_rank, fault.phase), [])
            aims.append(lambda _: self._happen(fault))

    def _happen(self, fault: Fault) -> None:
        if self._cluster.quiet:
            return
        self._cluster.note("fault", f"! {fault}")
        self._touch(fault)
        make = self._make.get(fault.kind)
        if make is not None:
            make(fault)
        elif (rank := self._cluster.ranks.get(fault.job_rank)) is not None:
            self._simulation.tell(rank.name, fault.kind)

    def _touch(self, fault: Fault) -> None:
        """Tell the checker which ranks the fault may harm, and for how long."""
        cluster = self._cluster
        if fault.kind in _HARMLESS:
            return
        until_ns = self._simulation.now + self._lasts(fault)
        node = self._node(fault)
        of_node = fault.kind in {"kill-guard", "power", "stop-guard", "cut"}
        everybody = of_node and node == cluster.leader and not cluster.setup.moves
        if of_node and fault.lasts_ns:
            # It comes back at last, or gives up.
            until_ns += round(cluster.setup.limits.heartbeat_timeout * _NS)
        if fault.kind == "cut":
            until_ns = 0  # it may be lost, but its ranks have stopped before the others go on
        for job_rank in range(cluster.setup.ranks):
            mine = of_node and cluster.setup.node_of(job_rank) == node
            if job_rank == fault.job_rank or mine or everybody or cluster.setup.pairs:
                cluster.checker.touch(job_rank, until_ns)

    def _node(self, fault: Fault) -> str:
        return self._cluster.setup.node_of(fault.job_rank)

    def _lasts(self, fault: Fault) -> int:
        """As long as planned, but not where everybody would give up on the controller."""
        of_node = fault.kind in {"stop-guard", "cut"}
        if of_node and self._node(fault) == self._cluster.leader:
            return min(fault.lasts_ns, round(_LEADER_S * _NS))
        return fault.lasts_ns

    def _stop(self, fault: Fault) -> None:
        self._cluster.pause_rank(fault.job_rank)
        self._cluster.after(fault.lasts_ns, self._cluster.resume_rank, fault.job_rank)

    def _slow(self, fault: Fault) -> None:
        rank = self._cluster.ranks.get(fault.job_rank)
        if rank is not None:
            self._simulation.slow(rank.name, self._cluster.between(_MS, 300 * _MS))
            self._cluster.after(
                fault.lasts_ns, lambda name: self._simulation.slow(name, 0), rank.name
            )

    def _stop_guard(self, fault: Fault) -> None:
        node = self._node(fault)
        self._simulation.pause(node)
        self._cluster.after(self._lasts(fault), self._simulation.resume, node)

    def _reset(self, fault: Fault) -> None:
        leader = self._cluster.leader
        if self._node(fault) != leader:
            self._simulation.break_connections(self._node(fault), leader)

    def _cut(self, fault: Fault) -> None:
        node = self._node(fault)
        others = [each for each in self._cluster.setup.nodes if each != node]
        for sources, targets in (([node], others), (others, [node])):
            cut = self._simulation.cut(sources, targets)
            self._cluster.after(self._lasts(fault), self._simulation.heal, cut)

    def _move(self, _fault: Fault) -> None:
        if self._cluster.setup.moves and self._simulation.is_alive(self._cluster.leader):
            self._cluster.move()
