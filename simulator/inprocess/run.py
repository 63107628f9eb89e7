"""One run: a job, its faults, a verdict. The same arguments give the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from simulator.inprocess.cluster import Cluster
from simulator.inprocess.faults import KINDS, Fault, Nemesis, plan
from simulator.run import NS, InvariantError, Result
from simulator.virtual.messages import Received
from undaunted.coordinator.protocol import Aside
from undaunted.inprocess.guard import links

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simulator.inprocess.cluster import Rank
    from simulator.inprocess.setup import Setup

# Faults are made so long; then those that wait for a phase are called off.
FAULTS_S = 60.0
# After the last fault every rank has ended its last calls within this time: limits of a rank that
# hangs (hard timeout), of one that does not join, and of a call that does not begin.
ENDS_S = 700.0
_LONGEST_LINE = 240


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
    cluster.run(result, lambda: _run(cluster, result.faults))
    checker = cluster.checker
    result.ends = dict(checker.ends)
    result.rounds, result.takeovers = len(checker.records), checker.takeovers
    return result


def _run(cluster: Cluster, faults: Sequence[Fault]) -> None:
    simulation, alive = cluster.simulation, cluster.checker.alive
    Nemesis(cluster, faults)
    simulation.run(round(FAULTS_S * NS))
    cluster.quiet = True
    last_ns = max((fault.lasts_ns for fault in faults), default=0)
    limit_ns = simulation.now + last_ns + round(ENDS_S * NS)
    simulation.run(limit_ns, stop=lambda: not alive)
    left = [rank for rank in alive if not _beyond_help(cluster, rank)]
    if left:
        who = ", ".join(f"{rank.name} ({rank.phase.name})" for rank in left)
        raise InvariantError(f"progress after the last fault: {who} still there")


def _beyond_help(cluster: Cluster, rank: Rank) -> bool:
    """Whether it hangs where nothing limits it: without a guard."""
    return rank.stuck and not cluster.simulation.is_alive(rank.node)


def line(now: int, name: str, what: Any) -> str:
    """Return an event of a run as text."""
    if isinstance(what, Received) and isinstance(what.message, Aside):
        try:
            content: Any = links.read_word(what.message)
        except msgspec.MsgspecError:
            content = links.read_report(what.message)
        what = Received(what.connection, content)
    return f"{now / 1e9:12.6f}  {name:<6}  {what}"[:_LONGEST_LINE]
