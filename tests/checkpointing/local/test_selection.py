"""Which local checkpoint all ranks can load."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from undaunted.checkpointing.local.selection import Choice, Held, Transfer, select


def held(iteration: int, rank: int, world_size: int = 2, save: str = "s") -> Held:
    return Held(iteration, rank, world_size, save, float(iteration))


def test_the_newest_that_is_whole() -> None:
    choice, reasons = select([[held(1, 0), held(2, 0)], [held(1, 1)]])
    assert choice == Choice(1, "s", 2, [0, 1], [])
    assert reasons == ["iteration 2: the shards of ranks 1 are nowhere, or damaged"]


def test_a_lost_disk_is_filled_from_a_replica() -> None:
    choice, _ = select([[held(1, 0), held(1, 1)], []])
    assert choice == Choice(1, "s", 2, [0, 1], [Transfer(0, 1, 1)])


def test_ranks_that_changed_places_get_their_shards_from_each_other() -> None:
    choice, _ = select([[held(1, 1)], [held(1, 0)]])
    assert choice == Choice(1, "s", 2, [0, 1], [Transfer(1, 0, 0), Transfer(0, 1, 1)])


def test_shards_of_different_saves_are_never_mixed() -> None:
    choice, reasons = select([[held(2, 0, save="new"), held(1, 0)], [held(2, 1), held(1, 1)]])
    assert choice is not None
    assert choice.iteration == 1
    assert len(reasons) == 2


def test_of_two_saves_of_one_iteration_the_later() -> None:
    def both(rank: int) -> list[Held]:
        return [Held(1, rank, 2, "z", 1.0), Held(1, rank, 2, "a", 2.0)]

    choice, _ = select([both(0), both(1)])
    assert choice is not None
    assert choice.save == "a"


def test_another_number_of_ranks() -> None:
    shards = [held(1, rank, world_size=4) for rank in range(4)]
    choice, reasons = select([shards, shards])
    assert choice is None
    (reason,) = reasons
    assert reason.startswith("iteration 1: it was saved by 4 ranks and there are 2 now")


def test_where_every_shard_is_the_whole_state_any_will_do() -> None:
    choice, _ = select([[], [held(3, 1, 4), held(3, 3, 4)], []], interchangeable=True)
    assert choice == Choice(3, "s", 4, [1, 1, 1], [Transfer(1, 0, 1), Transfer(1, 2, 1)])


def test_nothing_at_all() -> None:
    assert select([[], []]) == (None, [])


@given(
    st.lists(
        st.frozensets(
            st.builds(held, st.integers(0, 2), st.integers(0, 2), st.just(3), st.sampled_from("ab"))
        ),
        min_size=3,
        max_size=3,
    ),
    st.booleans(),
)
def test_every_rank_gets_its_shard_of_one_save(
    holdings: list[frozenset[Held]], interchangeable: bool
) -> None:
    choice, _ = select(holdings, interchangeable)
    if choice is None:
        saves = {(one.iteration, one.save) for shards in holdings for one in shards}
        for save in saves:
            ranks = {o.rank for shards in holdings for o in shards if (o.iteration, o.save) == save}
            assert not interchangeable
            assert ranks != {0, 1, 2}
        return
    here = [
        {one.rank for one in shards if (one.iteration, one.save) == (choice.iteration, choice.save)}
        for shards in holdings
    ]
    for move in choice.transfers:
        assert move.shard in here[move.sender]
    for rank, shard in enumerate(choice.shards):
        assert interchangeable or shard == rank
        assert shard in here[rank] or any(
            (move.receiver, move.shard) == (rank, shard) for move in choice.transfers
        )
