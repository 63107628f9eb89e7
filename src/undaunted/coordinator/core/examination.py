"""A limit was passed on a node: all nodes are looked at before anything is stopped. Pure.

What nodes have seen is opaque here. A function that the shell hands in makes a `Ruling` of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from undaunted.coordinator.core.messages import Place

# Longer evidence counts as none.
MOST_EVIDENCE = 64 * 1024
# How long evidence of all nodes is waited for: a node takes 1.6 s at most.
EVIDENCE_S = 1.8


@dataclass(frozen=True, slots=True)
class Case:
    """What is known of a round in which a limit was passed.

    Attributes:
        round: its number.
        places: which ranks are where, of nodes that work or have been looked at.
        evidence: what each node has seen of its ranks; b"" = nothing.
        finished: which ranks were on nodes where all have ended with 0.
    """

    round: int
    places: tuple[Place, ...]
    evidence: Mapping[str, bytes]
    finished: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Ruling:
    """Who it was.

    Attributes:
        line: all of it, for people; "" = no answer.
        node: where it happened; "" = on no node in particular.
        ranks: to blame.
        cause: its name in `attribution.findings`, "" = none of these.
        victims: nodes whose ranks only wait.
        certain: whether ``ranks`` are to blame for sure, not just most likely.
        problem: why there is no answer, if something is wrong with the function.
    """

    line: str = ""
    node: str = ""
    ranks: tuple[int, ...] = ()
    cause: str = ""
    victims: tuple[str, ...] = ()
    certain: bool = False
    problem: str = ""


# Pure, bounded, and does not raise.
Rule = Callable[[Case], Ruling]


@dataclass(slots=True)
class Examination:
    """Collects what nodes have seen, until all that were asked have answered.

    Attributes:
        asked: nodes that worked when it began.
        suspects: nodes that have passed a limit, the first one first.
        evidence: see `Case`.
        failed: suspects that have reported their failure, the first one first.
        over: the time is up.
    """

    asked: Collection[str]
    suspects: dict[str, None] = field(default_factory=dict)
    evidence: dict[str, bytes] = field(default_factory=dict)
    failed: dict[str, None] = field(default_factory=dict)
    over: bool = False

    def answered(self, node: str, evidence: bytes) -> None:
        """A node has been looked at."""
        self.evidence[node] = evidence if len(evidence) <= MOST_EVIDENCE else b""

    def complete(self, working: Collection[str]) -> bool:
        """Whether a suspect has failed, and nobody is waited for any more."""
        waited_for = (node for node in self.asked if node not in self.evidence)
        return bool(self.failed) and (self.over or not any(node in working for node in waited_for))
