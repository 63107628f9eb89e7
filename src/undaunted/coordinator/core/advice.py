"""What is best done after a round that failed, by all that failed before it. Pure.

The job's history is opaque here: the policy keeps it, its leader writes it down, and a function
that the shell hands in reads it and adds each round to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.coordinator.core.messages import Advised, Blamed

# Causes of which the advice to end the job is always followed: no restart makes a checkpoint.
ALWAYS_ENDS = frozenset({"state_not_saved"})
# A longer one is not kept.
MOST_HISTORY = 16 * 1024


@dataclass(frozen=True, slots=True)
class Attempt:
    """A round that is over.

    Attributes:
        round: its number.
        nodes: that took part.
        spare: how many nodes the job can go on without; those that are here count.
        iteration: the highest one that was begun, None = none or not known.
        blamed: what ended it, None = it did not fail.
        lost: the node that is blamed cannot be reached any more.
        findings: what nodes have found out about their own failures.
        left: ranks that had ended with 0, if all that failed have only lost a peer.
        first: the iteration it began with, None = none or not known.
    """

    round: int
    nodes: tuple[str, ...]
    spare: int
    iteration: int | None
    blamed: Blamed | None
    lost: bool
    findings: Mapping[str, bytes]
    left: tuple[int, ...] = ()
    first: int | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, and the history from now on.

    Attributes:
        advised: for all nodes; None = the round did not fail.
        history: with this round.
        problem: what is wrong with the history that was known, or with the function.
        failure: for the ranks of the next round, how this one failed; opaque.
    """

    advised: Advised | None
    history: bytes
    problem: str = ""
    failure: str = ""


# Takes the history and what happened. Pure, bounded, and does not raise.
Advise = Callable[[bytes, Attempt], Advice]
