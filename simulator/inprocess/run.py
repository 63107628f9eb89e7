"""One run: a job, its faults, a verdict. The same arguments give the same run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simulator.inprocess.cluster import Cluster
from simulator.inprocess.faults import KINDS, Fault, Nemesis, plan
from simulator.invariant import InvariantError, violated_by

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simulator.inprocess.rank import Rank
    from simulator.inprocess.setup import Setup

_NS = 1_000_000_000
# Faults are made so long; then those that wait for a phase are called off.
FAULTS_S = 60.0
# After the last fault every rank has ended its last calls within this time: limits of a rank that
# hangs (hard timeout), of one that does not join, and of a call that does not begin.
ENDS_S = 700.0


@dataclass(slots=True)
class Result:
    """What a run came to.

    Attributes:
        seed: of the run.
        problem: which invariant does not hold, "" = all hold.
        ends: how many calls of ranks have ended how.
        faults: what happened.
        seconds: virtual time.
        epochs, takeovers: how many there were.
        events: how many were handled.
    """

    seed: int
    problem: str = ""
    ends: dict[str, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    seconds: float = 0.0
    epochs: int = 0
    takeovers: int = 0
    events: int = 0


def run(
    setup: Setup,
    seed: int,
    *,
    kinds: Sequence[str] = tuple(KINDS),
    faults: int = 10,
    trace: Callable[[int, str, Any], None] | None = None,
) -> Result:
    """Simulate a job.

    Args:
        setup: the job.
        seed: of everything that is left to chance.
        kinds: which faults may happen, see `KINDS`.
        faults: how many.
        trace: told of everything: time in nanoseconds, who, what.
    """
    result = Result(seed, faults=plan(setup, seed, kinds, faults))
    cluster = Cluster(setup, seed, trace=trace)
    result.problem = violated_by(lambda: _run(cluster, result.faults))
    simulation, checker = cluster.simulation, cluster.checker
    result.ends = dict(checker.ends)
    result.seconds = simulation.now / _NS
    result.epochs, result.takeovers = len(checker.records), checker.takeovers
    result.events = simulation.events
    return result


def _run(cluster: Cluster, faults: Sequence[Fault]) -> None:
    simulation, alive = cluster.simulation, cluster.checker.alive
    Nemesis(cluster, faults)
    simulation.run(round(FAULTS_S * _NS))
    cluster.quiet = True
    last_ns = max((fault.lasts_ns for fault in faults), default=0)
    limit_ns = simulation.now + last_ns + round(ENDS_S * _NS)
    simulation.run(limit_ns, stop=lambda: not alive)
    left = [rank for rank in alive if not _beyond_help(cluster, rank)]
    if left:
        who = ", ".join(f"{rank.name} ({rank.phase.name})" for rank in left)
        raise InvariantError(f"progress after the last fault: {who} still there")


def _beyond_help(cluster: Cluster, rank: Rank) -> bool:
    """Whether it hangs where nothing limits it: without a guard."""
    return rank.stuck and not cluster.simulation.is_alive(rank.node)
