from __future__ import annotations

import pytest

from undaunted.checkpointing.errors import StaleEpochError
from undaunted.checkpointing.format.fence import Fence, begun, check, decode, encode


def test_a_later_round_raises_it() -> None:
    fence = begun(Fence({"a": 3}), "a", 4, "/x", alive=True)
    assert decode(encode(fence)) == Fence({"a": 4})
    check(fence, "a", 4, "/x")
    check(fence, "b", 1, "/x")


@pytest.mark.parametrize("other", [3, 5])
def test_a_commit_of_another_round_is_refused_with_a_remedy(other: int) -> None:
    with pytest.raises(StaleEpochError, match=rf"/x: round epoch 4 of run 'a' .* to {other}"):
        check(Fence({"a": 4}), "a", other, "/x")


def test_an_earlier_round_begins_only_when_nobody_else_is_alive() -> None:
    """A job that is started anew under the name of a former one begins with 1."""
    with pytest.raises(StaleEpochError):
        begun(Fence({"a": 4}), "a", 1, "/x", alive=True)
    assert begun(Fence({"a": 4}), "a", 1, "/x", alive=False) == Fence({"a": 1})


def test_without_rounds_there_is_no_fence() -> None:
    fence = Fence({"": 4})
    assert begun(fence, "", 0, "/x", alive=True) == fence
    check(fence, "", 0, "/x")


def test_runs_do_not_pile_up() -> None:
    fence = Fence()
    for number in range(200):
        fence = begun(fence, f"run{number}", 1, "/x", alive=True)
    assert len(fence.runs) == 64
    assert "run199" in fence.runs
    assert "run100" not in fence.runs


@pytest.mark.parametrize("content", [b"", b"7\n", b"\xff", b'{"runs": 3}'])
def test_what_cannot_be_read_holds_nobody_back(content: bytes) -> None:
    assert decode(content) == Fence()
