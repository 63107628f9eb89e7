"""Pages and looks for the tests of the screen."""

from __future__ import annotations

from typing import Any

from undaunted.progress.snapshot import PageSnapshot, Phase, SectionSnapshot
from undaunted.top.pages import Look
from undaunted.top.ranks import Rank

MS = 1_000_000
SECOND = 1_000_000_000


def stepping(iteration: int, at_ns: int, **fields: Any) -> PageSnapshot:
    """A rank that began ``iteration`` at ``at_ns``, after iteration 0 at 0."""
    begin = {
        "pid": 100,
        "pid_start": 7,
        "phase": Phase.STEPPING,
        "iteration": iteration,
        "iteration_ns": at_ns,
        "first_iteration": 0,
        "first_step_ns": 1,
        "heartbeat_ns": at_ns,
    }
    return PageSnapshot(**{**begin, **fields})


def section(name: str, since_ns: int | None, **fields: Any) -> dict[str, SectionSnapshot]:
    return {name: SectionSnapshot(name, since_ns, **fields)}


def look(page: PageSnapshot, state: str = "S", cpu_s: float = 0.0) -> Look:
    return Look(page, (), state, cpu_s)


def row(rank: int, still_s: float = 0.0, **fields: Any) -> Rank:
    """A rank that is watched and has shown nothing for ``still_s``."""
    begin = {
        "rank": rank,
        "local_rank": rank,
        "node": "n0",
        "live": True,
        "phase": "stepping",
        "state": "S",
        "watched": True,
        "iteration": 10,
        "step_s": 0.1,
        "still_s": still_s,
        "silent_s": still_s,
    }
    return Rank(**{**begin, **fields})
