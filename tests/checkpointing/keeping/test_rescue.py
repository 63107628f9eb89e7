"""Which of the copies in memory becomes a checkpoint."""

from __future__ import annotations

import pytest

from undaunted.checkpointing.format.manifest import FORMAT_VERSION, Manifest
from undaunted.checkpointing.keeping.copies import CopiedState, RescueChoice, choose

EPOCH = 2  # of the round that looks


def snapshot(
    step: int, epoch: int = 1, world_size: int = 2, session: str = "s", number: int = 0
) -> CopiedState:
    return CopiedState(epoch, step, world_size, session, "abc", number or step // 10)


def of(one: CopiedState, rank: int, saved_at: float = 5.0) -> tuple[CopiedState, int, float]:
    return one, rank, saved_at


def committed(
    step: int, number: int, session: str = "s", epoch: int = 1, saved_at: float = 6.0
) -> Manifest:
    return Manifest(
        format=FORMAT_VERSION,
        step=step,
        epoch=epoch,
        world_size=2,
        session=session,
        attempt=number * 10 + 3,
        structure="abc",
        block_bytes=1 << 23,
        files={},
        saved_at=saved_at,
        writer="test",
    )


def test_the_newest_whole_state_is_chosen() -> None:
    old, new = snapshot(10), snapshot(20)
    have = [[of(old, 0), of(new, 0)], [of(old, 1), of(new, 1)]]
    assert choose(have, None, EPOCH) == RescueChoice(new, [0, 1])


def test_a_state_that_lacks_a_rank_is_not() -> None:
    old, new = snapshot(10), snapshot(20)
    have = [[of(old, 0), of(new, 0)], [of(old, 1)]]
    assert choose(have, None, EPOCH) == RescueChoice(old, [0, 1])
    assert choose([[of(new, 0)], []], None, EPOCH) == RescueChoice(None, [])


@pytest.mark.parametrize(
    ("newest", "rescued"),
    [
        (committed(10, 1), False),
        (committed(20, 2), False),
        (committed(9, 0), True),
        (committed(300, 0), True),  # training has gone back since
        (committed(10, 0), True),  # the same step, saved again
        (committed(10, 7, "t", saved_at=6.0), False),  # another Checkpointer of the round
        (committed(300, 7, "t", saved_at=4.0), True),
        (committed(300, 7, "t", epoch=0, saved_at=6.0), True),  # a former round
        (committed(1, 7, "t", epoch=2, saved_at=4.0), False),
        (committed(1, 7, "t", epoch=9, saved_at=6.0), False),  # of another start of the job
        (committed(300, 7, "t", epoch=9, saved_at=4.0), True),
    ],
)
def test_nothing_is_done_when_a_checkpoint_is_as_new(newest: Manifest, rescued: bool) -> None:
    have = [[of(snapshot(10), 0), of(snapshot(10), 1)]]
    assert choose(have, newest, EPOCH) == (
        RescueChoice(snapshot(10), [0, 0]) if rescued else RescueChoice(None, [])
    )


def test_one_of_several_holders_writes() -> None:
    """All ranks of a node can get at all copies of the node."""
    have = [[of(snapshot(10), 0), of(snapshot(10), 1)]] * 2
    assert choose(have, None, EPOCH) == RescueChoice(snapshot(10), [0, 0])


def test_a_later_round_counts_more_than_a_higher_step() -> None:
    """A job that was set back has left states of steps that no longer follow from what it did."""
    before, after = snapshot(30, epoch=1, world_size=1), snapshot(20, epoch=2, world_size=1)
    assert choose([[of(before, 0), of(after, 0)]], None, EPOCH) == RescueChoice(after, [0])


def test_a_later_save_counts_more_than_a_higher_step() -> None:
    before, after = (snapshot(step, 1, 1, "s", number) for step, number in ((300, 3), (250, 4)))
    assert choose([[of(before, 0), of(after, 0)]], None, EPOCH) == RescueChoice(after, [0])
    other = snapshot(310, 1, 1, "t", 1)  # of a Checkpointer that was opened later
    assert choose([[of(before, 0, 5.0), of(other, 0, 6.0)]], None, EPOCH) == RescueChoice(
        other, [0]
    )


def test_copies_of_different_runs_are_not_mixed() -> None:
    have = [[of(snapshot(10, session="a"), 0), of(snapshot(10, session="b"), 1)]]
    assert choose(have, None, EPOCH) == RescueChoice(None, [])
