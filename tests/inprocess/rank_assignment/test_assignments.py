from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from tests.inprocess.rank_assignment.jobs import Job
from undaunted.inprocess.compose import Compose
from undaunted.inprocess.rank_assignment import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    FillGaps,
    FilterCountGroupedByKey,
    MaxActiveWorldSize,
    RankAssignment,
    RankAssignmentCtx,
    RankDiscarded,
    RankFilter,
    ShiftRanks,
)
from undaunted.inprocess.state import State

if TYPE_CHECKING:
    from pathlib import Path


def job(*filters: Any) -> Job:
    return Job(8, lambda: Compose(*filters, ShiftRanks()))


def test_all() -> None:
    everyone = job(ActivateAllRanks())
    everyone.check()
    assert everyone.active() == list(range(8))


def test_reserves_take_over() -> None:
    some = job(MaxActiveWorldSize(6))
    assert some.active() == [0, 1, 2, 3, 4, 5]
    some.lose([0, 3])
    some.check()
    assert some.active() == [1, 2, 4, 5, 6, 7]
    some.lose([5])
    some.check()
    assert some.active() == [1, 2, 4, 6, 7]


def test_no_limit() -> None:
    assert len(job(MaxActiveWorldSize()).active()) == 8


def test_divisible() -> None:
    some = job(ActiveWorldSizeDivisibleBy(3))
    assert len(some.active()) == 6
    some.lose([7])
    assert len(some.active()) == 6
    some.lose([0, 1])
    some.check()
    assert some.active() == [2, 3, 4]


def test_filters_add_up() -> None:
    assert len(job(ActiveWorldSizeDivisibleBy(4), MaxActiveWorldSize(7)).active()) == 4


def test_a_process_joins() -> None:
    some = job(ActiveWorldSizeDivisibleBy(3))
    some.lose([0, 1])
    assert some.active() == [2, 3, 4, 5, 6, 7]
    some.lose([2])
    assert some.active() == [3, 4, 5]
    some.join()
    some.check()
    assert some.active() == [3, 4, 5, 6, 7, 100]


@pytest.mark.parametrize("wrong", [0, -1])
def test_wrong_numbers(wrong: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        MaxActiveWorldSize(wrong)
    with pytest.raises(ValueError, match="at least 1"):
        ActiveWorldSizeDivisibleBy(wrong)


def test_composed_they_are_a_rank_assignment() -> None:
    composed = Compose(ActivateAllRanks(), ShiftRanks())
    assert isinstance(composed, RankAssignment)
    assert composed.info(None) is None


def test_filters_can_be_told_from_assignments() -> None:
    filters = (ActivateAllRanks(), MaxActiveWorldSize(2), ActiveWorldSizeDivisibleBy(2))
    assert all(isinstance(each, RankFilter) for each in filters)
    assert isinstance(Compose(*filters), RankFilter)
    assert not isinstance(ShiftRanks(), RankFilter)


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
