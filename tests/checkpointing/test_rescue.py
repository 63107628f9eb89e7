"""Which of the copies in memory becomes a checkpoint."""

from __future__ import annotations

from undaunted.checkpointing.keeping.copies import Snapshot
from undaunted.checkpointing.rescue import Choice, choose


def snapshot(step: int, epoch: int = 1, world_size: int = 2, session: str = "s") -> Snapshot:
    return Snapshot(epoch, step, world_size, session, "abc")


def test_the_newest_whole_state_is_chosen() -> None:
    old, new = snapshot(10), snapshot(20)
    have = [[(old, 0), (new, 0)], [(old, 1), (new, 1)]]
    assert choose(have, newest=-1) == Choice(new, [0, 1])


def test_a_state_that_lacks_a_rank_is_not() -> None:
    old, new = snapshot(10), snapshot(20)
    have = [[(old, 0), (new, 0)], [(old, 1)]]
    assert choose(have, newest=-1) == Choice(old, [0, 1])
    assert choose([[(new, 0)], []], newest=-1) == Choice(None, [])


def test_nothing_is_done_when_a_checkpoint_is_as_new() -> None:
    have = [[(snapshot(10), 0), (snapshot(10), 1)]]
    assert choose(have, newest=10) == Choice(None, [])
    assert choose(have, newest=9) == Choice(snapshot(10), [0, 0])


def test_one_of_several_holders_writes() -> None:
    """All ranks of a node can get at all copies of the node."""
    have = [[(snapshot(10), 0), (snapshot(10), 1)]] * 2
    assert choose(have, newest=0) == Choice(snapshot(10), [0, 0])


def test_a_later_round_counts_more_than_a_higher_step() -> None:
    """A job that was set back has left states of steps that no longer follow from what it did."""
    before, after = snapshot(30, epoch=1, world_size=1), snapshot(20, epoch=2, world_size=1)
    assert choose([[(before, 0), (after, 0)]], newest=-1) == Choice(after, [0])


def test_copies_of_different_runs_are_not_mixed() -> None:
    have = [[(snapshot(10, session="a"), 0), (snapshot(10, session="b"), 1)]]
    assert choose(have, newest=-1) == Choice(None, [])
