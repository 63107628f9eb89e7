"""What rank 0 answers while ranks find a checkpoint and load it."""

from __future__ import annotations

import pytest

from undaunted.checkpointing.errors import NoCheckpointError
from undaunted.checkpointing.local.ckpt_managers.loading import (
    Standing,
    decide,
    decider,
    decode,
    encode,
)
from undaunted.checkpointing.local.selection import Held

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
    verdict = decode(decider(False)([encode(one) for one in standings]))
    assert verdict.choice is not None
    assert (verdict.done, verdict.choice.iteration) == (False, 1)
    assert verdict.reasons[0] == "rank 1: block 3 is damaged"


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
