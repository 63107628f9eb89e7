"""What job is simulated."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from undaunted.inprocess.core.messages import Limits

_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Setup:
    """One job.

    Attributes:
        ranks: how many processes it has.
        per_node: how many of them each guard serves.
        moves: the controller moves to another guard when it is lost, as under `undaunted run`;
            otherwise it is in the first guard for ever.
        rejoin: processes that end are replaced.
        reserves: how many ranks do not call the function while enough others do.
        pairs: rank assignment discards a rank whose neighbour is terminated.
        longest_ms: the function takes up to so long.
        limits: of the calls.
    """

    ranks: int
    per_node: int = 1
    moves: bool = False
    rejoin: bool = False
    reserves: int = 0
    pairs: bool = False
    longest_ms: int = 6000
    limits: Limits = _LIMITS

    @property
    def nodes(self) -> list[str]:
        """Machines, each with a guard of that name."""
        return [f"n{number}" for number in range(-(-self.ranks // self.per_node))]

    def node_of(self, job_rank: int) -> str:
        """Where a process runs."""
        return f"n{job_rank // self.per_node}"


def vary(seed: int, ranks: int) -> Setup:
    """Choose for a seed what is not fixed: the kind of job."""
    chance = Random(f"setup {seed}")  # noqa: S311 - to be repeated
    moves = chance.random() < 0.5
    return Setup(
        ranks,
        per_node=2 if moves else 1,
        moves=moves,
        rejoin=moves and chance.random() < 0.5,
        reserves=chance.choice((0, 0, 1)),
        pairs=chance.random() < 0.2,
    )
