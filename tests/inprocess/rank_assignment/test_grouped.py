from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.inprocess.rank_assignment.jobs import Job
from undaunted.inprocess.compose import Compose
from undaunted.inprocess.rank_assignment import (
    ActivateAllRanks,
    FilterCountGroupedByKey,
    RankAssignmentCtx,
    ShiftRanks,
)
from undaunted.inprocess.state import State

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE = timedelta(seconds=60)


def node_of_two(state: State) -> str:
    return str(state.initial_rank // 2)


def test_groups_that_are_too_small() -> None:
    whole = FilterCountGroupedByKey(node_of_two, lambda count: count == 2)
    job = Job(6, lambda: Compose(ActivateAllRanks(), ShiftRanks(), whole))
    job.check()
    assert job.ranks() == [0, 1, 2, 3, 4, 5]
    job.lose([2])
    job.check()
    assert job.active() == [0, 1, 4, 5]


def test_two_filters_with_keys_of_their_own() -> None:
    def make() -> Any:
        return Compose(
            ShiftRanks(),
            FilterCountGroupedByKey("all", lambda count: count >= 3),
            FilterCountGroupedByKey(node_of_two, lambda count: count == 2),
        )

    job = Job(6, make)
    job.lose([2])
    assert job.ranks() == [0, 1, 4, 5]
    job.lose([1])
    assert job.ranks() == []


@pytest.mark.torch
def test_without_the_wrapper_keys_go_over_the_store(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def assign(rank: int) -> list[set[int]]:
        store = torch.distributed.FileStore(str(tmp_path / "store"), 3)
        key = lambda state: "small" if state.rank == 2 else "large"  # noqa: E731
        several = FilterCountGroupedByKey(key, lambda count: count > 1, DEADLINE)
        found = []
        for terminated in (set(), set(), {1}):
            ctx = RankAssignmentCtx(State(rank, 3), store, terminated)
            if rank not in terminated:
                found.append(several(ctx).terminated_ranks)
        return found

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(assign, range(3)))
    assert found == [[{2}, {2}, {0, 1, 2}], [{2}, {2}], [{2}, {2}, {0, 1, 2}]]


def test_nothing_to_exchange_keys_over() -> None:
    with pytest.raises(ValueError, match="a store is needed"):
        FilterCountGroupedByKey("", bool)(RankAssignmentCtx(State(0, 1), None, set()))
