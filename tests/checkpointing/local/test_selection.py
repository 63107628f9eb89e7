"""Which local checkpoint all ranks can load."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.checkpointing.errors import NoCheckpointError
from undaunted.checkpointing.local.selection import (
    Answer,
    Held,
    NoReplicasAvailableError,
    ShardChoice,
    Share,
    Standing,
    Transfer,
    decide,
    decider,
    plan_transfers,
    select,
)

IDS = st.integers(0, 5)
HOLDINGS = st.dictionaries(st.integers(0, 5), st.frozensets(IDS), max_size=6)


def held(iteration: int, rank: int, world_size: int = 2, save: str = "s") -> Held:
    return Held(iteration, rank, world_size, save, float(iteration))


def test_the_newest_that_is_whole() -> None:
    choice, reasons = select([[held(1, 0), held(2, 0)], [held(1, 1)]])
    assert choice == ShardChoice(1, "s", 2, [[0], [1]], [])
    assert reasons == ["iteration 2: no whole shard is left of rank 1"]


def test_a_lost_disk_is_filled_from_a_replica() -> None:
    choice, _ = select([[held(1, 0), held(1, 1)], []])
    assert choice == ShardChoice(1, "s", 2, [[0], [1]], [Transfer(0, 1, 1)])


def test_ranks_that_changed_places_get_their_shards_from_each_other() -> None:
    choice, _ = select([[held(1, 1)], [held(1, 0)]])
    assert choice == ShardChoice(1, "s", 2, [[0], [1]], [Transfer(1, 0, 0), Transfer(0, 1, 1)])


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
    assert "what ranks 2-3 had" in reason
    (reason,) = select([shards] * 5).reasons
    assert "nothing to load for rank 4" in reason


def in_order(rank: int, ranks: int, saved: int) -> range:
    return range(rank * saved // ranks, (rank + 1) * saved // ranks)


def test_ranks_take_over_the_parts_of_others() -> None:
    here = [[held(1, 0, 4), held(1, 3, 4)], [held(1, 1, 4), held(1, 2, 4)]]
    choice, _ = select(here, parts=in_order)
    assert choice == ShardChoice(
        1, "s", 4, [[0, 1], [2, 3]], [Transfer(1, 0, 1), Transfer(0, 1, 3)]
    )
    # More ranks than before: two of them have the same part.
    choice, _ = select([*here, [], []], parts=lambda rank, *_: [rank // 2, 2 + rank // 2])
    assert choice is not None
    assert choice.shards == [[0, 2], [0, 2], [1, 3], [1, 3]]


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (lambda rank, *_: [rank], "nobody would load what ranks 2-3 had"),
        (lambda rank, *_: range(rank, 9), "nothing to load for ranks 4-8"),
        (in_order, "no whole shard is left of rank 3"),
    ],
)
def test_parts_that_nobody_takes_or_has(parts: Any, why: str) -> None:
    shards = [held(2, rank, world_size=4) for rank in range(3 if parts is in_order else 4)]
    older = [held(1, rank, world_size=2) for rank in (0, 1)]
    choice, reasons = select([shards, []], parts=parts)
    assert choice is None
    assert why in reasons[0]
    choice, _ = select([[*shards, *older], []], parts=in_order)
    assert choice is not None
    assert choice.iteration == (1 if parts is in_order else 2)


def test_where_every_shard_is_the_whole_state_any_will_do() -> None:
    choice, _ = select([[], [held(3, 1, 4), held(3, 3, 4)], []], interchangeable=True)
    assert choice == ShardChoice(3, "s", 4, [[1], [1], [1]], [Transfer(1, 0, 1), Transfer(1, 2, 1)])


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
    for rank, (shard,) in enumerate(choice.shards):
        assert interchangeable or shard == rank
        assert shard in here[rank] or any(
            (move.receiver, move.shard) == (rank, shard) for move in choice.transfers
        )


@given(HOLDINGS, st.dictionaries(st.integers(0, 5), st.frozensets(IDS), max_size=6))
def test_all_get_what_they_want_from_who_has_it(
    available: dict[int, frozenset[int]], wanted: dict[int, frozenset[int]]
) -> None:
    everything = frozenset().union(*available.values())
    if any(ids - everything for ids in wanted.values()):
        with pytest.raises(NoReplicasAvailableError, match="which no rank has"):
            plan_transfers(available, wanted)
        return
    moves = plan_transfers(available, wanted)
    for sender, receiver, it in moves:
        assert it in available[sender]
        assert it not in available.get(receiver, ())
    received = {(receiver, it) for _, receiver, it in moves}
    assert len(received) == len(moves)
    for rank, ids in wanted.items():
        assert ids <= available.get(rank, frozenset()) | {i for r, i in received if r == rank}


def test_those_who_have_the_same_share_the_work() -> None:
    moves = plan_transfers({0: ["a"], 1: ["a"], 2: [], 3: []}, {2: ["a"], 3: ["a"]})
    assert moves == [(0, 2, "a"), (1, 3, "a")]


OLD = [Held(1, rank, 2, "a", 1.0) for rank in (0, 1)]
NEW = [Held(2, rank, 2, "b", 2.0) for rank in (0, 1)]


def test_first_the_newest_is_chosen_and_when_all_have_loaded_it_they_are_done() -> None:
    verdict = decide([Standing([OLD[rank], NEW[rank]]) for rank in (0, 1)], False)
    assert verdict.choice is not None
    assert (verdict.done, verdict.choice.iteration) == (False, 2)
    loaded = [Standing([OLD[rank], NEW[rank]], (2, "b")) for rank in (0, 1)]
    assert decide(loaded, False).done


def test_damage_on_one_rank_makes_all_take_another() -> None:
    standings = [
        Standing([OLD[0], NEW[0]], (2, "b")),
        Standing([OLD[1]], None, "block 3 is damaged", damaged=True),
    ]
    contributions = [msgspec.msgpack.encode(one) for one in standings]
    answers = [msgspec.msgpack.decode(one, type=Answer) for one in decider(False)(contributions)]
    for rank, answer in enumerate(answers):
        assert (answer.done, answer.share) == (False, Share(1, "a", [rank], []))
        assert answer.reasons[0] == "rank 1: block 3 is damaged"


def test_only_ranks_with_a_part_in_transfers_hear_of_them() -> None:
    held = [msgspec.structs.replace(one, world_size=3) for one in (*NEW, Held(2, 2, 3, "b", 2.0))]
    standings = [Standing([held[0], held[1]]), Standing([]), Standing([held[2]])]
    contributions = [msgspec.msgpack.encode(one) for one in standings]
    answers = [msgspec.msgpack.decode(one, type=Answer) for one in decider(False)(contributions)]
    moves = [Transfer(0, 1, 1)]
    assert [one.share for one in answers] == [
        Share(2, "b", [0], moves),
        Share(2, "b", [1], moves),
        Share(2, "b", [2], []),
    ]


def test_a_problem_without_damage_is_the_end() -> None:
    standings = [Standing([NEW[0]], (2, "b")), Standing([NEW[1]], None, "rank 0 has ended")]
    with pytest.raises(NoCheckpointError, match="rank 1: rank 0 has ended"):
        decide(standings, False)


def test_ranks_that_have_loaded_different_saves_are_not_done() -> None:
    standings = [Standing([NEW[0]], (2, "b")), Standing([NEW[1]], (2, "c"))]
    assert not decide(standings, False).done


def test_nothing() -> None:
    verdict = decide([Standing([]), Standing([])], False)
    assert (verdict.done, verdict.choice, verdict.reasons) == (False, None, [])
