"""Who keeps copies for whom, and who sends what to whom."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.checkpointing.local.replication.plans import (
    ExchangePlan,
    ExchangePlanEntry,
    NoReplicasAvailableError,
    parse_group_sequence,
    plan_transfers,
)

IDS = st.integers(0, 5)
HOLDINGS = st.dictionaries(st.integers(0, 5), st.frozensets(IDS), max_size=6)


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


@given(HOLDINGS, st.dictionaries(st.integers(0, 5), st.frozensets(IDS), max_size=6))
def test_all_get_what_they_want_from_who_has_it(
    available: dict[int, frozenset[int]], wanted: dict[int, frozenset[int]]
) -> None:
    everything = frozenset().union(*available.values())
    if any(ids - everything for ids in wanted.values()):
        with pytest.raises(NoReplicasAvailableError, match="which no rank has"):
            plan_transfers(available, wanted)
        return
    entries = plan_transfers(available, wanted)
    for entry in entries:
        assert entry.id_ in available[entry.sender]
        assert entry.id_ not in available.get(entry.receiver, ())
    received = {(entry.receiver, entry.id_) for entry in entries}
    assert len(received) == len(entries)
    for rank, ids in wanted.items():
        assert ids <= available.get(rank, frozenset()) | {i for r, i in received if r == rank}


def test_those_who_have_the_same_share_the_work() -> None:
    entries = plan_transfers({0: ["a"], 1: ["a"], 2: [], 3: []}, {2: ["a"], 3: ["a"]})
    assert entries == [ExchangePlanEntry(0, 2, "a"), ExchangePlanEntry(1, 3, "a")]


def test_a_plan_says_who_sends_what() -> None:
    plan: ExchangePlan[str] = ExchangePlan()
    plan.plan(sender=0, receiver=1, id_="a")
    plan.plan(sender=1, receiver=0, id_="b")
    plan.plan(sender=0, receiver=2, id_="c")
    assert plan.required_ids(0) == ["a", "c"]
    assert [entry.receiver for entry in plan.entries] == [1, 0, 2]
