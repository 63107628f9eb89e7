"""A round of the job out of what its nodes tell of it. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.journal.job.values import JobRound, NodePart
from undaunted.journal.restarts import last_rank

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.journal.job.failures import Broken
    from undaunted.journal.job.launches import World
    from undaunted.journal.restarts import RoundSummary

# What a node tells of each round: by index of the launch and number of the round.
Told = dict[tuple[int, int], "RoundSummary"]


def job_round(
    attempt: int, world: World, following: World | None, broke: Broken | None, told: Told
) -> JobRound:
    """Return a round without its rank-time.

    Args:
        attempt: in which it was.
        world: the round on all its nodes.
        following: the next round of the attempt, None if there is none.
        broke: how it failed.
        told: what the nodes tell.
    """
    parts = _parts(world, told)
    of_nodes = [told[one.index, world.number] for one in world.launches]
    firsts = [one.iterations[0] for one in of_nodes if one.iterations]
    lasts = [one.last_iteration for one in of_nodes if one.last_iteration is not None]
    stops = [part.stopped_ns for part in parts if part.stopped_ns is not None]
    causes = [one.cause for one in of_nodes if one.cause]
    return JobRound(
        attempt=attempt,
        round=world.number,
        world_size=world.size or len(world.ranks),
        began_ns=world.began,
        stopped_ns=max(stops, default=None),
        outcome=broke.failure.kind if broke else _outcome([one.outcome for one in of_nodes]),
        cause=(broke.failure.line if broke else "") or next(iter(causes), ""),
        failure=broke.failure if broke else None,
        failed_ns=broke.happened_ns if broke else None,
        first_iteration=min(firsts, default=None),
        last_iteration=max(lasts, default=None),
        restart_ns=_restart(broke, following),
        parts=parts,
    )


def lost_steps(one: JobRound, following: JobRound) -> int | None:
    """Return how many steps a round had completed that the next one did again."""
    if one.last_iteration is None or following.first_iteration is None:
        return None
    return max(0, one.last_iteration - following.first_iteration)


def _parts(world: World, told: Mapping[tuple[int, int], RoundSummary]) -> list[NodePart]:
    parts = []
    for launch in world.launches:
        stopped = launch.stops.get(world.number)
        parts.append(
            NodePart(
                node=launch.node,
                launch=launch.index,
                ranks=launch.ranks[world.number],
                began_ns=launch.on_axis(launch.begins[world.number]),
                stopped_ns=None if stopped is None else launch.on_axis(stopped),
                times=told[launch.index, world.number].times,
            )
        )
    return parts


def _outcome(of_nodes: list[str]) -> str:
    return next((one for one in ("finished", "stopped") if one in of_nodes), "")


def _restart(broke: Broken | None, following: World | None) -> int | None:
    """Return the time from a failure until the program ran on all ranks of the next round."""
    if broke is None or broke.happened_ns is None or following is None:
        return None
    if len(following.ranks) < following.size:
        return None  # the journal of a node is missing
    moments = []
    for launch in following.launches:
        moment = last_rank(launch.rounds[following.number], "first_line")
        if moment is None:
            return None
        moments.append(launch.on_axis(moment))
    return max(0, max(moments) - broke.happened_ns)
