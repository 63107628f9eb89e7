from __future__ import annotations

from itertools import combinations

import pytest

from tests.inprocess.rank_assignment.jobs import Job
from undaunted.inprocess.compose import Compose
from undaunted.inprocess.rank_assignment import (
    ActivateAllRanks,
    FillGaps,
    RankAssignmentCtx,
    RankDiscarded,
    ShiftRanks,
)
from undaunted.inprocess.state import State


def after(closing: type, world_size: int, terminated: tuple[int, ...]) -> list[int]:
    """Initial ranks by the rank they get."""
    job = Job(world_size, lambda: Compose(ActivateAllRanks(), closing()))
    job.lose(terminated)
    job.check()
    return job.ranks()


@pytest.mark.parametrize("world_size", range(1, 9))
def test_every_set_of_losses(world_size: int) -> None:
    everyone = range(world_size)
    for terminated in (t for k in range(world_size) for t in combinations(everyone, k)):
        survivors = [rank for rank in everyone if rank not in terminated]
        assert after(ShiftRanks, world_size, terminated) == survivors
        filled = after(FillGaps, world_size, terminated)
        keep = [rank for rank in survivors if rank < len(survivors)]
        assert all(filled[rank] == rank for rank in keep)
        moved = [filled[rank] for rank in range(len(survivors)) if rank in terminated]
        assert moved == sorted(moved)
        assert sorted(filled) == survivors


def test_fill_gaps_as_documented() -> None:
    assert after(FillGaps, 8, (1, 4, 5)) == [0, 6, 2, 3, 7]


@pytest.mark.parametrize("closing", [ShiftRanks, FillGaps])
def test_a_terminated_rank_is_told(closing: type) -> None:
    with pytest.raises(RankDiscarded, match=r"rank 1 \(initially 3\)"):
        closing()(RankAssignmentCtx(State(1, 2, initial_rank=3), None, {1}))
