from __future__ import annotations

import pytest

from undaunted.checkpointing.errors import StaleEpochError
from undaunted.checkpointing.format.fence import Fence, check, decode, encode, raised


def test_a_later_round_raises_it() -> None:
    fence = raised(Fence({"a": 3}), "a", 4, "/x")
    assert decode(encode(fence)) == Fence({"a": 4})
    check(fence, "a", 4, "/x")
    check(fence, "b", 1, "/x")


def test_an_earlier_one_is_refused_with_a_remedy() -> None:
    for refuse in (check, raised):
        with pytest.raises(StaleEpochError, match=r"/x: round epoch 4 of run 'a' .* to 3"):
            refuse(Fence({"a": 4}), "a", 3, "/x")


def test_without_rounds_there_is_no_fence() -> None:
    fence = Fence({"": 4})
    assert raised(fence, "", 0, "/x") == fence
    check(fence, "", 0, "/x")


def test_runs_do_not_pile_up() -> None:
    fence = Fence()
    for number in range(200):
        fence = raised(fence, f"run{number}", 1, "/x")
    assert len(fence.runs) == 64
    assert "run199" in fence.runs
    assert "run100" not in fence.runs


@pytest.mark.parametrize("content", [b"", b"7\n", b"\xff", b'{"runs": 3}'])
def test_what_cannot_be_read_holds_nobody_back(content: bytes) -> None:
    assert decode(content) == Fence()
