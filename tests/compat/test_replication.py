"""Groups, plans and strategies of nvidia_resiliency_ext.checkpointing.local.replication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from nvidia_resiliency_ext.checkpointing.local.replication.group_utils import (
    ExchangePlan,
    batched,
)
from nvidia_resiliency_ext.checkpointing.local.replication.strategies import (
    LazyReplicationStrategyBuilder,
    ReplicationStrategy,
)
from nvidia_resiliency_ext.checkpointing.local.replication.utils import zip_strict
from tests.checkpointing.local import jobs

PROGRAM = Path(__file__).with_name("replication_program.py")

pytestmark = pytest.mark.torch


def test_groups_of_four_ranks(tmp_path: Path) -> None:
    for rank, told in enumerate(jobs.run(tmp_path, 4, "groups", program=PROGRAM)):
        ranks = [0, 2] if rank in (0, 2) else [1, 3]
        other = ranks[1 - ranks.index(rank)]
        assert told["ranks"] == [ranks, ranks.index(rank), ranks[1], "gloo"]
        assert told["of torch"] == [True, ranks, ranks.index(rank), rank, ranks]
        assert told["objects"] == ranks
        assert told["batch"] == [[[r] * (r + 1), True] for r in ranks]
        assert told["broadcast"] == [float(ranks[1])] * 2
        assert told["replicated"] == [[7, rank], [7, other]]
        assert told["plan"] == ([[0, 2]] if ranks == [0, 2] else [])
        assert told["retrieved"] == ([[7, 2]] if rank == 2 else [])
        assert told["world"] == [[0, 1, 2, 3], "cpu", 4]
        assert told.get("received", True)
        assert told.get("list", [1, True]) == [1, True]
        place = ranks.index(rank)
        gathered = ranks if place == 0 else None
        assert told["collectives"] == [[place, 2, rank], "cpu", ranks, sum(ranks), gathered]


def test_a_plan_says_who_sends_what() -> None:
    plan: ExchangePlan[str] = ExchangePlan()
    plan.plan(sender=0, receiver=1, id_="a")
    plan.plan(sender=1, receiver=0, id_="b")
    plan.plan(sender=0, receiver=2, id_="c")
    assert plan.required_ids(0) == ["a", "c"]
    assert [entry.receiver for entry in plan.entries] == [1, 0, 2]


class Told(ReplicationStrategy):
    """Says what it was called with."""

    clique = (0, 2)

    def replicate(self, local_ckpt: Any, id_: Any) -> Any:
        return [local_ckpt], [id_]

    def retrieve_plan(self, globally_available_ids: Any, wanted: Any) -> Any:
        return globally_available_ids, wanted

    def retrieve_execute(self, plan: Any, my_data: Any) -> Any:
        return {"plan": plan, "data": my_data}


def test_a_builder_makes_its_strategy_once_at_first_need() -> None:
    built = []

    class Mine(LazyReplicationStrategyBuilder):
        def _eager_build(self) -> ReplicationStrategy:
            built.append(Told())
            return built[-1]

    mine = Mine()
    assert not built
    assert mine.clique == (0, 2)
    local: Any = "state"
    assert mine.replicate(local, 7) == ([local], [7])
    assert mine.retrieve_plan({0: [1]}, [1]) == ({0: [1]}, [1])
    plan: Any = "plan"
    assert mine.retrieve_execute(plan, {}) == {"plan": plan, "data": {}}
    assert len(built) == 1
    assert mine.replication_strategy is built[0]


def test_batches() -> None:
    assert list(batched("abcde", 2)) == [("a", "b"), ("c", "d"), ("e",)]
    assert list(batched([], 2)) == []
    with pytest.raises(ValueError, match="batches of 0"):
        list(batched("a", 0))


def test_zip_of_unequal_lengths() -> None:
    assert list(zip_strict([1], [2])) == [(1, 2)]
    with pytest.raises(ValueError, match="shorter"):
        list(zip_strict([1, 2], [2]))
