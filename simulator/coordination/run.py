"""One run: a job, its faults, a verdict. The same arguments give the same run."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from simulator.coordination.cluster import Cluster, cut_off_for_good, why_beyond_help
from simulator.coordination.faults import KINDS, Nemesis, plan
from simulator.coordination.invariants import BegunAnew
from simulator.coordination.setup import (
    AWAY_TIMEOUT_S,
    GIVE_UP_S,
    JOIN_TIMEOUT_S,
    LEASE_S,
    Setup,
)
from simulator.run import NS, InvariantError, Result
from undaunted.coordinator.lead.times import AWAY_MARGIN_S
from undaunted.fault_tolerance.agent.node import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# After the last fault is over, a job that can run does so within this time, in seconds: docs say
# what it is made of.
RUNS_AGAIN_S = 45.0
# The same where nobody can take over.
RUNS_AGAIN_ALONE_S = RUNS_AGAIN_S + LEASE_S + AWAY_TIMEOUT_S + AWAY_MARGIN_S
# A job whose work is done has ended everywhere after this time.
ENDS_S = 30.0
# So has one that cannot go on.
GIVES_UP_S = 2 * (JOIN_TIMEOUT_S + GIVE_UP_S) + AWAY_TIMEOUT_S


def vary(
    seed: int,
    nodes: int,
    spares: int,
    *,
    elastic: bool = False,
    min_healthy: bool = False,
    etcd: bool = False,
    restart_intensity: tuple[int, float] | None = None,
) -> Setup:
    """Choose for a seed what is not fixed: the kind of job.

    Args:
        seed: what the choice depends on.
        nodes: see `Setup`.
        spares: see `Setup`.
        elastic: every job is.
        min_healthy: every job goes on with the nodes that are healthy.
        etcd: who leads is decided in etcd, in every job.
        restart_intensity: of every job.
    """
    chance = Random(f"setup {seed}")  # noqa: S311 - to be repeated
    return Setup(
        nodes,
        spares,
        elastic=chance.random() < 0.3 or elastic,
        min_healthy=min_healthy,
        standalone=chance.random() < 0.2 and not etcd,
        etcd=etcd,
        ordered=chance.random() < 0.5,
        max_restarts=chance.choice((3, 100, 100, 100)),
        restart_intensity=restart_intensity,
    )


def run(
    setup: Setup,
    seed: int,
    *,
    kinds: Sequence[str] = tuple(KINDS),
    faults: int = 20,
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
    cluster.run(result, lambda: _run_or_begin_anew(cluster, result))
    checker = cluster.checker
    result.ended = result.ended or checker.job_outcome
    how = result.ended or "gave up"
    result.ends = {f"{how} (beyond help)" if result.hopeless else how: 1}
    result.lost_s = result.lost_s or 0.0
    result.rounds, result.takeovers = checker.rounds, checker.takeovers
    return result


def _run_or_begin_anew(cluster: Cluster, result: Result) -> None:
    try:
        _run(cluster, result)
    except BegunAnew:
        result.ended = "began anew"


def _run(cluster: Cluster, result: Result) -> None:
    setup, simulation, checker = cluster.setup, cluster.simulation, cluster.checker
    Nemesis(cluster, result.faults)
    simulation.run(max((fault.until_ns for fault in result.faults), default=0))
    cluster.note("fault", "no more: all are over")
    bound_s = RUNS_AGAIN_S if setup.votes and not setup.etcd else RUNS_AGAIN_ALONE_S
    bound_s += 2 * setup.longest_pause_s
    _settle(cluster, bound_s)
    if not _is_over(cluster) and not _runs_again(cluster):
        result.hopeless = why_beyond_help(cluster)
        if not result.hopeless:
            seen = "it runs, but " + _astray(cluster) if checker.job_runs else "it does not"
            raise InvariantError(f"the job runs again: {seen}, {bound_s:g} s after the last fault")
    limit_s = GIVES_UP_S if _is_over(cluster) or result.hopeless else ENDS_S
    result.lost_s = checker.idle_s
    cluster.finish()
    simulation.run(simulation.now + round(limit_s * NS), stop=lambda: not checker.alive)
    _judge_end(cluster, result)


def _settle(cluster: Cluster, bound_s: float) -> None:
    """Wait until the job runs and every agent follows its leader, or has ended; not too long."""
    simulation = cluster.simulation
    deadline = simulation.now + round(bound_s * NS)
    while simulation.now < deadline and not _is_over(cluster) and not _runs_again(cluster):
        simulation.run(simulation.now + NS // 2)
    cluster.checker.cut_off_for_good.update(
        agent.name for agent in cluster.agents.values() if cut_off_for_good(agent, cluster)
    )


def _is_over(cluster: Cluster) -> bool:
    """Whether the job has ended: for somebody, or for all that its leader could tell."""
    checker = cluster.checker
    return bool(checker.job_outcome) or (checker.over_ns > 0 and not checker.job_runs)


def _runs_again(cluster: Cluster) -> bool:
    return cluster.checker.job_runs and not _astray(cluster)


def _astray(cluster: Cluster) -> str:
    """Name agents that follow no leader, or say that there are two of them; "" = all is well."""
    agents = [agent for agent in cluster.agents.values() if agent.seat in cluster.checker.alive]
    follows = {
        agent.name: agent.follows
        for agent in agents
        if not agent.outcome and not cut_off_for_good(agent, cluster)
    }
    alone = [name for name, epoch in follows.items() if epoch == 0]
    if alone:
        return f"{', '.join(alone)} follow no leader"
    newest = cluster.checker.newest
    behind = [a.name for a in agents if not a.outcome and a.follows and a.knows_round != newest]
    if behind:
        return f"{', '.join(behind)} do not know of round {newest}"
    failed = [a.name for a in agents if not a.outcome and a.node.state is State.FAILED]
    if failed:
        return f"{', '.join(failed)} have failed, and nobody stops them or has them go on"
    if len(set(follows.values())) > 1:
        return "not all follow the same leader: " + ", ".join(
            f"{n} {e}" for n, e in follows.items()
        )
    return ""


def _judge_end(cluster: Cluster, result: Result) -> None:
    """One verdict for all, and one that is true."""
    checker = cluster.checker
    outcome = checker.job_outcome
    left = sorted(node for node, _ in checker.alive if checker.could_be_told(node))
    if left:
        names = ", ".join(left)
        raise InvariantError(f"one verdict: {names} have not ended, others {outcome or 'neither'}")
    if result.hopeless or not outcome:
        return
    late = sorted(
        seat[0]
        for seat, (how, why) in checker.ended_as.items()
        if how == "gave up"
        and "the job has ended" not in why
        and checker.could_be_told(seat[0])
        and (outcome == "finished" or seat in checker.followed)
    )
    if late:
        raise InvariantError(
            f"one verdict: {', '.join(late)} gave up, the job {outcome} for others"
        )
