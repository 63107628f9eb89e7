"""Rank assignments of whole jobs, in one process."""

from __future__ import annotations

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.inprocess.compose import Compose
from undaunted.inprocess.rank_assignment import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    FillGaps,
    FilterCountGroupedByKey,
    Layer,
    LayerFlag,
    MaxActiveWorldSize,
    RankAssignment,
    RankAssignmentCtx,
    RankDiscarded,
    RankFilter,
    ShiftRanks,
    Tree,
)
from undaunted.inprocess.state import Mode, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


class Job:
    """Every rank has a state and an assignment of its own."""

    def __init__(self, world_size: int, make: Callable[[], Any], store: Any = None) -> None:
        self.states = [State(rank, world_size) for rank in range(world_size)]
        self.assignments = [make() for _ in range(world_size)]
        self.make = make
        self.store = store
        self.assign(())

    def lose(self, initial_ranks: Iterable[int]) -> None:
        """Lose ranks, named as they were at first, and assign anew."""
        gone = {s.rank for s in self.states if s.initial_rank in set(initial_ranks)}
        kept = [at for at, state in enumerate(self.states) if state.rank not in gone]
        self.states = [self.states[at] for at in kept]
        self.assignments = [self.assignments[at] for at in kept]
        for state in self.states:
            state.advance()
        self.assign(gone)

    def join(self) -> None:
        """Have a process join."""
        world_size = self.states[0].world_size + 1
        for state in self.states:
            state.world_size = world_size
            state.forget_assignment()
        self.states.append(State(world_size - 1, world_size, initial_rank=100))
        self.assignments.append(self.make())
        self.assign(())

    def assign(self, terminated: Iterable[int]) -> None:
        info = {}
        for state, assignment in zip(self.states, self.assignments, strict=True):
            told = getattr(assignment, "info", lambda _: None)(state)
            if told is not None:
                info[state.rank] = json.loads(json.dumps(told))
        left = []
        for state, assignment in zip(self.states, self.assignments, strict=True):
            ctx = RankAssignmentCtx(state, self.store, set(terminated), copy.deepcopy(info))
            try:
                ctx = assignment(ctx)
            except RankDiscarded:
                assert state.mode is Mode.TERMINATED
                continue
            assert ctx.terminated_ranks == set()
            left.append((ctx.state, assignment))
        self.states = [state for state, _ in left]
        self.assignments = [assignment for _, assignment in left]

    def check(self) -> None:
        """All fits together."""
        assert {state.world_size for state in self.states} <= {len(self.states)}
        assert sorted(state.rank for state in self.states) == list(range(len(self.states)))
        active = [state for state in self.states if state.mode is Mode.ACTIVE]
        assert {state.active_world_size for state in self.states} <= {len(active)}
        assert sorted(state.active_rank for state in active) == list(range(len(active)))
        reserves = [state for state in self.states if state.mode is not Mode.ACTIVE]
        assert all(s.mode is Mode.INACTIVE and s.active_rank is None for s in reserves)

    def active(self) -> list[int]:
        """Initial ranks by active rank."""
        active = [state for state in self.states if state.active_rank is not None]
        return [s.initial_rank for s in sorted(active, key=lambda s: s.active_rank or 0)]

    def ranks(self) -> list[int]:
        """Initial ranks by rank."""
        return [s.initial_rank for s in sorted(self.states, key=lambda s: s.rank)]


class DictStore:
    """What is used of a store, in one process and without waiting."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def wait(self, keys: list[str], timeout: Any) -> None:
        assert all(key in self.values for key in keys)


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


# --- trees ----------------------------------------------------------------------------------------

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
    with pytest.raises(TypeError, match=r"Store has no add, multi_get, wait: "):
        Tree([Layer()])(ctx)
