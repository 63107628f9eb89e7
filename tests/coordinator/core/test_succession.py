"""Whom a leader asks, and when it gives way."""

from __future__ import annotations

import pytest

from tests.coordinator.core.seats import ledger
from undaunted.coordinator import protocol as p
from undaunted.coordinator.core.sessions import Session, Sessions
from undaunted.coordinator.core.succession import ASK_AT_ONCE, Succession


def answer(epoch: int, leader: str = "b:1", *, lost: bool = False) -> p.MissAnswer:
    return p.MissAnswer(node="b", incarnation="b1", epoch=epoch, lost=lost, leader=leader)


@pytest.mark.parametrize(
    ("said", "sure", "expected"),
    [
        (answer(8), True, "b:1"),
        (answer(8, ""), True, ""),
        (answer(8, lost=True), True, ""),
        (answer(7), False, ""),
        (answer(6), True, ""),
        (answer(6), False, "b:1"),
    ],
)
def test_a_later_leader_or_any_for_one_that_is_not_sure(
    said: p.MissAnswer, sure: bool, expected: str
) -> None:
    assert Succession("a", Sessions()).successor(said, 7, sure=sure) == expected


def test_members_that_are_not_here_are_asked_some_at_a_time() -> None:
    nodes = "abcdefghijklmnopqrst"
    sessions = Sessions()
    sessions.add(Session(p.Hello(node="a", incarnation="a1", slots=2), 1, 0))
    asks = Succession("a", sessions)
    asked = [ask.node for _ in range(3) for ask in asks.ask(ledger(nodes))]
    assert len(asked) == 3 * ASK_AT_ONCE
    assert set(asked) == set(nodes) - {"a"}


def test_nobody_is_asked_where_nobody_can_take_over() -> None:
    assert Succession("a", Sessions()).ask(ledger("abc", casting_vote="")) == []
