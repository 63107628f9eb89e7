"""Who keeps copies for whom; the rest is tested by jobs of several ranks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from undaunted.checkpointing.local.replication.strategies import (
    CliqueReplicationStrategy,
    LazyCliqueReplicationStrategy,
    LazyReplicationStrategyBuilder,
    ReplicationStrategy,
    parse_group_sequence,
)

pytestmark = pytest.mark.torch


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_groups_divide_the_world(jump: int, factor: int, times: int) -> None:
    world_size = jump * factor * times
    groups = parse_group_sequence(jump, factor, world_size)
    assert sorted(rank for group in groups for rank in group) == list(range(world_size))
    assert groups == sorted(groups)
    for group in groups:
        assert len(group) == factor
        assert {after - before for before, after in itertools.pairwise(group)} <= {jump}


def test_pairs_of_four_nodes_with_eight_ranks() -> None:
    groups = parse_group_sequence(8, 2, 32)
    assert groups[0] == [0, 8]
    assert groups[7] == [7, 15]
    assert groups[8] == [16, 24]


@pytest.mark.parametrize("arguments", [(0, 2, 4), (2, 0, 4), (2, 2, 6), (8, 2, 8)])
def test_worlds_that_cannot_be_divided(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"multiple of|at least 1"):
        parse_group_sequence(*arguments)


def test_a_builder_makes_its_strategy_once_at_first_need() -> None:
    built = []

    class Mine(LazyReplicationStrategyBuilder):
        def _eager_build(self) -> ReplicationStrategy:
            built.append(CliqueReplicationStrategy([0, 2]))
            return built[-1]

    mine = Mine()
    assert not built
    assert mine.clique == [0, 2]
    assert len(built) == 1
    assert mine.replication_strategy is built[0]


def test_cliques_may_be_asked_for_before_there_is_a_group() -> None:
    lazy = LazyCliqueReplicationStrategy(1, 2)  # torch.distributed comes later
    assert isinstance(lazy, LazyReplicationStrategyBuilder)
    with pytest.raises(ValueError, match="process group has not been initialized"):
        _ = lazy.clique
