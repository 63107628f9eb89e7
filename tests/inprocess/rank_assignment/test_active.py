from __future__ import annotations

from typing import Any

import pytest

from tests.inprocess.rank_assignment.jobs import Job
from undaunted.inprocess.compose import Compose
from undaunted.inprocess.rank_assignment import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    MaxActiveWorldSize,
    RankAssignment,
    RankFilter,
    ShiftRanks,
)


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
