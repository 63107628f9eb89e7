"""What was found when a job was checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.journal.events import Event
    from undaunted.journal.job.launches import Launch

# Names of the invariants, and what is expected by each.
TWO_WORLDS = "never two worlds"
OLD_WORLD = "an old world ends"
ONE_PLACE = "each rank in one place"
ASCENDING = "rounds ascend"
BUDGET = "the budget"
EVICTED = "no healthy node is evicted"
OVER = "an ended job has no round"
VERDICT = "one verdict"

EXPECTED = {
    TWO_WORLDS: "a round begins with one table on all of its nodes, and never are all ranks of two "
    "rounds alive",
    OLD_WORLD: "once a round runs, no node goes on with an older one, or begins it",
    ONE_PLACE: "a round has every rank exactly once, on at least as many nodes as --nnodes says, "
    "and each node begins it once",
    ASCENDING: "each round has a higher number than those before it",
    BUDGET: "not more restarts than --max-restarts, and each failure uses one",
    EVICTED: "a node keeps its seat unless something has happened to it",
    OVER: "no round begins after a launcher was told that the job is over",
    VERDICT: "all launchers that hear of the end hear of the same",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold.

    Attributes:
        rule: one of the names above.
        text: what was seen.
        seen: the events it was seen in, each with the launch that wrote it.
    """

    rule: str
    text: str
    seen: list[tuple[Launch, Event]] = field(default_factory=list)


@dataclass(slots=True)
class Findings:
    """All that was found.

    Attributes:
        violations: in the order in which they happened.
        unchecked: what could not be checked, and why, one line each.
        rounds, launches: how many were looked at.
    """

    violations: list[Violation] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    rounds: int = 0
    launches: int = 0
