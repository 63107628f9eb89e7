"""What keys do; the rest needs a terminal: tests/e2e/test_top.py."""

from __future__ import annotations

import pytest

from undaunted.top.screen import act
from undaunted.top.view import SORTS, Choice


@pytest.mark.parametrize(
    ("key", "offset"),
    [("up", 49), ("down", 51), ("page up", 40), ("page down", 60), ("home", 0), ("x", 50)],
)
def test_scrolling(key: str, offset: int) -> None:
    choice = Choice(offset=50)
    act(choice, key, page=10)
    assert choice.offset == offset


def test_the_end_is_far() -> None:
    choice = Choice()
    act(choice, "end", page=10)
    assert choice.offset > 10**6  # the view makes it as large as there are ranks
    act(choice, "page up", page=10**9)
    act(choice, "page up", page=10**9)
    assert choice.offset == 0


def test_all_sorts_in_turn() -> None:
    choice, seen = Choice(offset=5), []
    for _ in SORTS:
        act(choice, "s", page=1)
        seen.append(choice.sort)
    assert sorted(seen) == sorted(SORTS)
    assert choice.offset == 0


def test_pause() -> None:
    choice = Choice()
    act(choice, "p", page=1)
    assert choice.paused
    act(choice, "p", page=1)
    assert not choice.paused
