from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.checkpointing.errors import StaleEpochError
from undaunted.checkpointing.format.rules import (
    Fence,
    Rule,
    begun,
    check_fence,
    decode_fence,
    encode_fence,
    to_delete,
)


def test_a_later_round_raises_it() -> None:
    fence = begun(Fence({"a": 3}), "a", 4, "/x", alive=True)
    assert decode_fence(encode_fence(fence)) == Fence({"a": 4})
    check_fence(fence, "a", 4, "/x")
    check_fence(fence, "b", 1, "/x")


@pytest.mark.parametrize("other", [3, 5])
def test_a_commit_of_another_round_is_refused_with_a_remedy(other: int) -> None:
    with pytest.raises(StaleEpochError, match=rf"/x: round epoch 4 of run 'a' .* to {other}"):
        check_fence(Fence({"a": 4}), "a", other, "/x")


def test_an_earlier_round_begins_only_when_nobody_else_is_alive() -> None:
    """A job that is started anew under the name of a former one begins with 1."""
    with pytest.raises(StaleEpochError):
        begun(Fence({"a": 4}), "a", 1, "/x", alive=True)
    assert begun(Fence({"a": 4}), "a", 1, "/x", alive=False) == Fence({"a": 1})


def test_without_rounds_there_is_no_fence() -> None:
    fence = Fence({"": 4})
    assert begun(fence, "", 0, "/x", alive=True) == fence
    check_fence(fence, "", 0, "/x")


def test_runs_do_not_pile_up() -> None:
    fence = Fence()
    for number in range(200):
        fence = begun(fence, f"run{number}", 1, "/x", alive=True)
    assert len(fence.runs) == 64
    assert "run199" in fence.runs
    assert "run100" not in fence.runs


@pytest.mark.parametrize("content", [b"", b"7\n", b"\xff", b'{"runs": 3}'])
def test_what_cannot_be_read_holds_nobody_back(content: bytes) -> None:
    assert decode_fence(content) == Fence()


STEPS = st.lists(st.integers(0, 1000), unique=True)
RULES = st.builds(
    Rule,
    keep=st.none() | st.integers(1, 10),
    every=st.none() | st.integers(1, 100),
    certified=st.integers(0, 3),
)


def test_the_newest_are_kept() -> None:
    assert to_delete([100, 200, 300, 400], Rule(keep=2)) == [100, 200]


def test_what_was_committed_last_counts_and_not_the_highest_step() -> None:
    """After a return to step 200, step 300 belongs to what was given up."""
    assert to_delete([100, 200, 300, 210, 220], Rule(keep=2)) == [100, 200, 300]


def test_without_a_number_all_are_kept() -> None:
    assert to_delete([1, 2, 3], Rule(every=2)) == []


def test_some_are_kept_for_ever() -> None:
    assert to_delete([0, 100, 150, 200, 250, 300], Rule(keep=1, every=100)) == [150, 250]


def test_the_newest_good_one_is_kept_although_damaged_ones_have_newer_names() -> None:
    assert to_delete([100, 110, 200, 300], Rule(keep=2), good=110) == [100]


def test_the_newest_certified_ones_are_kept_as_well() -> None:
    rule = Rule(keep=1, certified=2)
    assert to_delete([10, 20, 30, 40, 50], rule, certified={10, 20, 30}) == [10, 40]


@given(STEPS, RULES, st.integers(0, 1000), st.sets(st.integers(0, 1000)))
def test_never_too_much(steps: list[int], rule: Rule, good: int, certified: set[int]) -> None:
    deleted = to_delete(steps, rule, good, certified)
    if rule.certified and (there := [step for step in steps if step in certified]):
        assert there[-1] not in deleted
    kept = set(steps) - set(deleted)
    assert deleted == [step for step in steps if step in deleted]
    assert good not in deleted
    if steps:
        assert steps[-1] in kept
    assert len(kept) >= min(len(steps), rule.keep or len(steps))
    if rule.every:
        assert all(step % rule.every for step in deleted)
    # It has done its work: nothing more is to be deleted.
    assert to_delete([step for step in steps if step in kept], rule, good, certified) == []
