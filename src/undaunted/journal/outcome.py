"""How a job has ended, from the launches of all its nodes. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from undaunted.journal.restarts import RunSummary

# Said by one node, these hold for the job: nobody is told so without the others.
FOR_ALL = ("finished", "no_restart")


class JobOutcome(NamedTuple):
    """How a job has ended: as in ``JobEnded``, and on which node that is written."""

    outcome: str
    exit_code: int
    reason: str
    node: str


def job_outcome(launches: Iterable[RunSummary]) -> JobOutcome | None:
    """Tell how the job ended that was started last in a run directory.

    A launcher that was lost, left or was excluded on the way does not decide about the job; its
    exit code is that of its node only.

    Args:
        launches: of all nodes, also earlier ones.

    Returns:
        The end, None if no launch has recorded one.
    """
    ended = []
    last_start = 0.0
    for launch in launches:
        start = launch.started_wall or 0.0
        last_start = max(last_start, start)
        if launch.exit_code is not None:
            ended.append((start + (launch.duration_ns or 0) / 1e9, launch))
    # Whoever had ended before the last launcher started was gone, or belongs to an earlier job.
    ends = [each for each in ended if each[0] >= last_start]
    if not ends:
        return None
    for outcome in FOR_ALL:
        for _, launch in ends:
            if launch.outcome == outcome:
                return _of(launch)
    told = [each for each in ends if not each[1].alone]
    if any(launch.outcome == "failed" for _, launch in told):
        ends = told  # who was cut off may have ended later, and knows less
    return _of(max(ends, key=lambda each: each[0])[1])


def _of(launch: RunSummary) -> JobOutcome:
    assert launch.exit_code is not None
    return JobOutcome(launch.outcome, launch.exit_code, launch.reason, launch.node)
