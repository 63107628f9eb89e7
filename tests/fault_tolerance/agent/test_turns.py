"""The order of events."""

from __future__ import annotations

import pytest

from undaunted.fault_tolerance.agent.turns import Turns


def test_what_a_call_causes_comes_after_it() -> None:
    turns = Turns()
    seen: list[str] = []

    def first() -> None:
        turns.take(lambda: seen.append("second"))
        seen.append("first")

    turns.take(first)
    assert seen == ["first", "second"]


def test_an_exception_does_not_block_the_next_call() -> None:
    turns = Turns()
    seen: list[str] = []

    def bug() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        turns.take(bug)
    turns.take(lambda: seen.append("next"))
    assert seen == ["next"]
