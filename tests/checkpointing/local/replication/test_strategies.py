"""Strategies that are made at first need; the others are tested by jobs of several ranks."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from undaunted.checkpointing.local.replication.strategies import (
    LazyCliqueReplicationStrategy,
    LazyReplicationStrategyBuilder,
    ReplicationStrategy,
)

pytestmark = pytest.mark.torch


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


def test_cliques_may_be_asked_for_before_there_is_a_group() -> None:
    lazy = LazyCliqueReplicationStrategy(1, 2)  # torch.distributed comes later
    assert isinstance(lazy, LazyReplicationStrategyBuilder)
    with pytest.raises(ValueError, match="process group has not been initialized"):
        _ = lazy.clique
