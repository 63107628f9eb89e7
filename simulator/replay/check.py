"""Checks the journals of a real job for what must never happen; see docs/design/simulator.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.replay.rules import rules, two_at_once
from simulator.replay.steps import Replay
from simulator.replay.values import EVICTED, Findings
from undaunted.base.text import format_ranges, format_ranks
from undaunted.journal.events import EventsLost
from undaunted.journal.job.launches import attempts_of, launches_of
from undaunted.journal.query import every

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simulator.replay.tables import Table
    from undaunted.journal.job.launches import Launch
    from undaunted.journal.reader import Journal


def check(journals: Sequence[Journal]) -> Findings:
    """Return what is wrong in a job, and what could not be checked.

    Args:
        journals: of all nodes; those of one directory are taken for one job.
    """
    launches = launches_of(journals)
    attempts, places = attempts_of(launches)
    findings = Findings(launches=len(launches))
    damaged = {journal.path for journal in journals if journal.unreadable}
    for attempt in attempts:
        replay = Replay(attempt, findings, damaged)
        replay.run()
        findings.violations += rules(attempt, replay.tables, places)
        findings.rounds += len(replay.tables)
        findings.unchecked += _missing(replay.tables)
    findings.violations += two_at_once(attempts, places)
    findings.unchecked += [*_damaged(journals), *_untold(launches)]
    if any(place.method in ("wall", "start") for place in places):
        findings.unchecked.append(
            "whether rounds on machines that no round connects ran at the same time: their clocks "
            "are not related"
        )
    return findings


def _missing(tables: Sequence[Table]) -> Iterator[str]:
    numbers: dict[str, list[int]] = {}
    for table in tables:
        if table.missing:
            numbers.setdefault(format_ranges(table.missing), []).append(table.number)
    for ranks, rounds in numbers.items():
        yield (
            f"what became of ranks {ranks} in rounds {format_ranks(rounds)}: no journal tells of "
            "them; their node was lost before it could write, or its journal is missing here"
        )


def _damaged(journals: Sequence[Journal]) -> Iterator[str]:
    for journal in journals:
        lost = sum(event.count for event in every(journal.events, EventsLost))
        if journal.unreadable or lost:
            yield (
                f"what {journal.path} does not tell: {journal.unreadable} lines cannot be read, "
                f"{lost} events were not written"
            )


def _untold(launches: Sequence[Launch]) -> Iterator[str]:
    """In journals of older versions the rules of the job are not told."""
    nodes = {launch.node for launch in launches}
    if len(nodes) > 1 and any(one.state.job and one.state.job.nodes is None for one in launches):
        yield f"{EVICTED}: the journals do not tell whether nodes take part in groups"
