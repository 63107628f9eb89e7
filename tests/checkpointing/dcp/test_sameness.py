from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.checkpoint import DefaultSavePlanner

from tests.checkpointing.dcp.test_reader import in_parts
from tests.checkpointing.dcp.test_saving import together
from undaunted.agreement.agreement import Agreement
from undaunted.checkpointing.dcp.sameness import check_plans
from undaunted.checkpointing.dcp.saving import Planned, Saver
from undaunted.checkpointing.errors import AGREED, SaveError

pytestmark = pytest.mark.torch


def plan_of(state: dict[str, Any]) -> Any:
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    return planner.create_local_plan()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            (torch.ones(3), torch.ones(3), 5),
            r"m\.x is a tensor float32 \(3,\) on ranks 0-1, no tensor on rank 2",
        ),
        (
            (5, torch.ones(3)),
            r"m\.x is no tensor on rank 0, a tensor float32 \(3,\) on rank 1\. ",
        ),
        ((torch.ones(3), torch.ones(4)), r"float32 \(3,\) on rank 0, .* \(4,\) on rank 1"),
        ((torch.ones(2), torch.ones(2).int()), r"a tensor int32 \(2,\) on rank 1"),
        (
            (torch.ones(4), in_parts(torch.ones(4), [[2]])),
            r"a part of a tensor float32 \(4,\) on rank 1",
        ),
    ],
)
def test_what_differs_is_named_with_its_ranks(values: Any, message: str) -> None:
    with pytest.raises(SaveError, match=message) as caught:
        check_plans([plan_of({"m": {"x": value}, "y": torch.ones(1)}) for value in values])
    assert caught.value.ranks == tuple(range(len(values)))
    assert "y is" not in str(caught.value)


@pytest.mark.parametrize("other", [{"acc": 0.9}, {"w": torch.ones(2)}, [torch.ones(2)], [{"a": 1}]])
@pytest.mark.parametrize("value", [None, 0, []])
def test_a_value_where_another_rank_has_a_container(value: Any, other: Any) -> None:
    states = [{"m": {"best": one}, "y": 1} for one in (other, value, other)]
    with pytest.raises(
        SaveError, match=r"m\.best is a value on rank 1, and has m\.best\."
    ) as caught:
        check_plans([plan_of(state) for state in states])
    assert caught.value.ranks == (1,)


def test_what_is_the_same_or_on_one_rank_only() -> None:
    check_plans(
        [
            plan_of(
                {
                    "a": torch.ones(2),
                    "b": in_parts(torch.ones(4), [[2]]),
                    "n": rank,
                    str(rank): rank,
                }
            )
            for rank in range(3)
        ]
    )


def test_many_are_not_all_listed() -> None:
    states = [{f"x{n}": torch.ones(rank + 1) for n in range(9)} for rank in range(7)]
    with pytest.raises(SaveError, match="and 4 more"):
        check_plans([plan_of(state) for state in states])


def test_all_ranks_are_told_and_the_next_save_may_work() -> None:
    store = torch.distributed.HashStore()
    savers = [Saver(Agreement(store, rank, 2, "s", kinds=AGREED)) for rank in range(2)]
    states: list[dict[str, Any]] = [{"a": torch.ones(2)}, {"a": 1}]
    for error in together(lambda rank: savers[rank].plan(states[rank], 30)):
        assert isinstance(error, SaveError)
        assert "a is a tensor float32 (2,) on rank 0, no tensor on rank 1" in str(error)
    states[1] = {"a": torch.ones(2)}
    assert all(isinstance(p, Planned) for p in together(lambda r: savers[r].plan(states[r], 30)))
