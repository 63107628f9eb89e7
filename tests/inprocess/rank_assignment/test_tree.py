from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inprocess.rank_assignment.jobs import DictStore, Job
from undaunted.inprocess.rank_assignment import Layer, LayerFlag, RankAssignmentCtx, Tree
from undaunted.inprocess.state import Mode, State

RESERVE, BACKFILL = LayerFlag.RESERVE, LayerFlag.BACKFILL


def node_of(size: int) -> object:
    return lambda state: str(state.rank // size)


def test_the_latest_reserve_takes_over() -> None:
    job = Job(8, lambda: Tree([Layer(max_ranks=4, flag=RESERVE)]))
    assert job.active() == [0, 1, 2, 3]
    job.lose([1])
    job.check()
    assert job.active() == [0, 7, 2, 3]
    assert job.ranks() == [0, 2, 3, 4, 5, 6, 7]
    job.lose([3, 7])
    job.check()
    assert job.active() == [0, 6, 2, 5]


def test_nothing_lost_nothing_changed() -> None:
    job = Job(4, lambda: Tree([Layer(max_ranks=2, flag=RESERVE)]))
    job.lose([])
    job.lose([3])
    job.check()
    assert job.active() == [0, 1]


def test_a_node_goes_as_a_whole() -> None:
    layers = [Layer(4, 4, "root", RESERVE), Layer(2, 2, node_of(2), RESERVE)]
    job = Job(6, lambda: Tree(layers))
    assert job.active() == [0, 1, 2, 3]
    job.lose([0])
    job.check()
    assert job.active() == [5, 4, 2, 3]
    job.lose([2])
    assert job.states == []


def test_reserves_of_the_own_node_come_first() -> None:
    layers = [Layer(flag=RESERVE), Layer(max_ranks=2, key_or_fn=node_of(3), flag=RESERVE)]
    job = Job(6, lambda: Tree(layers))
    assert job.active() == [0, 1, 3, 4]
    job.lose([0])
    assert job.active() == [2, 1, 3, 4]
    job.lose([2])  # the other node's reserve may not be active: its node has two
    job.check()
    assert job.active() == [1, 3, 4]
    job.lose([3])
    assert job.active() == [1, 5, 4]


def test_without_reserve_places_move_down() -> None:
    job = Job(6, lambda: Tree([Layer(max_ranks=4)]))
    job.lose([1])
    job.check()
    assert job.active() == [0, 2, 3]


def test_backfill() -> None:
    job = Job(6, lambda: Tree([Layer(flag=BACKFILL)]))
    job.lose([0, 1])
    job.check()
    assert job.active() == [5, 4, 2, 3]


def test_backfill_within_a_node() -> None:
    layers = [Layer(), Layer(key_or_fn=node_of(3), flag=BACKFILL)]
    job = Job(6, lambda: Tree(layers))
    job.lose([0])
    job.check()
    assert job.active() == [2, 1, 3, 4, 5]


def test_reserves_before_backfill() -> None:
    job = Job(6, lambda: Tree([Layer(max_ranks=5, flag=RESERVE | BACKFILL)]))
    job.lose([0, 1])
    job.check()
    assert job.active() == [5, 4, 2, 3]


def test_world_size_filter() -> None:
    job = Job(6, lambda: Tree([Layer(flag=RESERVE)], lambda size: size - size % 2))
    job.lose([0])
    job.check()
    assert job.active() == [1, 2, 3, 4]
    job.lose([2])
    job.check()
    assert job.active() == [1, 5, 3, 4]


def test_world_size_filter_that_adds() -> None:
    with pytest.raises(ValueError, match=r"world_size_filter\(2\) is 3"):
        Job(2, lambda: Tree([Layer()], lambda size: size + 1))


def test_ranks_follow_the_groups() -> None:
    with pytest.warns(UserWarning, match="do not follow each other"):
        job = Job(4, lambda: Tree([Layer(), Layer(key_or_fn=lambda state: str(state.rank % 2))]))
    assert job.ranks() == job.active() == [0, 2, 1, 3]


def test_one_root() -> None:
    with pytest.raises(RuntimeError, match="'0', '1'"):
        Job(2, lambda: Tree([Layer(key_or_fn=node_of(1))]))
    with pytest.raises(ValueError, match="at least one layer"):
        Tree([])


def test_losses_before_the_first_assignment() -> None:
    tree = Tree([Layer(2, 2, "", RESERVE)])
    state = State(1, 4)
    info = {rank: [""] for rank in (1, 2, 3)}
    tree(RankAssignmentCtx(state, None, {0}, info))
    assert (state.rank, state.world_size, state.active_rank) == (0, 3, 0)


def test_a_process_joins_and_is_told_the_keys() -> None:
    layers = [Layer(flag=RESERVE), Layer(max_ranks=2, key_or_fn=node_of(3))]
    job = Job(6, lambda: Tree(layers), DictStore())
    job.lose([0, 4])
    job.check()
    job.join()
    job.check()
    assert job.ranks() == [1, 2, 3, 5, 100]
    assert job.active() == [1, 2, 3, 5]


def test_the_log_tells_what_has_become_of_a_rank(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="undaunted")
    job = Job(3, lambda: Tree([Layer(max_ranks=2, flag=RESERVE)]))
    assert not caplog.messages
    job.lose([0])
    assert caplog.messages == [
        "[In-process] initial rank 2: hot spare activated; active rank None -> 0"
    ]


layer = st.builds(
    Layer,
    min_ranks=st.integers(1, 3),
    max_ranks=st.none() | st.integers(1, 6),
    key_or_fn=st.just(""),
    flag=st.none() | st.sampled_from([RESERVE, BACKFILL, RESERVE | BACKFILL]),
)


@given(
    layer,
    layer,
    st.integers(1, 12),
    st.integers(1, 4),
    st.none() | st.integers(1, 4),
    st.lists(st.sets(st.integers(0, 11), max_size=5), max_size=5),
)
def test_all_ranks_agree(root, below, world_size, node, divisor, losses) -> None:
    below.key_or_fn = node_of(node)
    world_size_filter = None if divisor is None else lambda size: size - size % divisor
    job = Job(world_size, lambda: Tree([root, below], world_size_filter))
    for lost in [[], *losses]:
        before = set(job.ranks())
        job.lose(lost)
        job.check()
        for layer, group in [(root, lambda r: 0), (below, lambda r: r // node)]:
            for key in {group(rank) for rank in job.ranks()}:
                here = [s for s in job.states if group(s.initial_rank) == key]
                active = [s for s in here if s.mode is Mode.ACTIVE]
                assert layer.max_ranks is None or len(active) <= layer.max_ranks
                assert len(here) >= layer.min_ranks or before == set(job.ranks())


def test_a_store_of_another_kind_is_told_what_is_missing() -> None:
    class Store:
        def get_states(self, ranks: object) -> object:
            raise NotImplementedError

        def set(self, key: str, value: str) -> None:
            raise NotImplementedError

    ctx = RankAssignmentCtx(State(0, 2), Store(), set())
    with pytest.raises(TypeError, match=r"Store has no add, multi_get, wait: .* store of torch's"):
        Tree([Layer()])(ctx)
