"""Whom a leader asks, and when it gives way."""

from __future__ import annotations

import pytest

from tests.coordinator.core.seats import ledger
from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import leader_messages as c
from undaunted.coordinator.core.config import PolicyConfig
from undaunted.coordinator.core.sessions import Session, Sessions
from undaunted.coordinator.core.succession import ASK_AT_ONCE, Succession

A = c.LeaderConfig("job", PolicyConfig(), "a")


def answer(
    epoch: int, leader: str = "b:1", *, lost: bool = False, begun: int | None = None
) -> p.MissAnswer:
    return p.MissAnswer(
        node="b", incarnation="b1", epoch=epoch, lost=lost, leader=leader, round=begun
    )


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
    assert Succession(A, Sessions()).successor(said, ledger(epoch=7), sure=sure) == expected


def test_a_leader_whom_nobody_can_replace_gives_way_to_a_later_one_only() -> None:
    # The earlier one gives way to this one; if both did, nobody would ever lead.
    asks, known = Succession(A, Sessions()), ledger("ab", epoch=7)
    assert asks.successor(answer(6), known, sure=False) == ""
    assert asks.successor(answer(8), known, sure=False) == "b:1"


@pytest.mark.parametrize("epoch", [6, 8])
def test_a_job_that_has_begun_goes_before_one_that_has_not(epoch: int) -> None:
    asks, empty = Succession(A, Sessions()), ledger(epoch=7, round=-1, table=())
    assert asks.successor(answer(epoch, begun=0), empty, sure=True) == "b:1"
    assert asks.successor(answer(epoch, begun=-1), ledger(epoch=7), sure=False) == ""


def test_who_is_at_the_endpoints_is_asked_by_a_leader_that_is_sure() -> None:
    asks = Succession(
        c.LeaderConfig("job", PolicyConfig(), "a", address="a:1", endpoints=("z:9",)), Sessions()
    )
    known = ledger("ab", round=3, birth=5)
    (ask,) = asks.ask(known, sure=True)
    assert (ask.address, ask.message.leader) == ("z:9", "a:1")
    assert (ask.message.birth, ask.message.round) == (5, 3)
    assert asks.ask(known, sure=False) == []


def test_members_that_are_not_here_are_asked_some_at_a_time() -> None:
    nodes = "abcdefghijklmnopqrst"
    sessions = Sessions()
    sessions.add(Session(p.Hello(node="a", incarnation="a1", slots=2), 1, 0))
    asks = Succession(A, sessions)
    asked = [ask.node for _ in range(3) for ask in asks.ask(ledger(nodes), sure=True)]
    assert len(asked) == 3 * ASK_AT_ONCE
    assert set(asked) == set(nodes) - {"a"}


def test_nobody_is_asked_where_nobody_can_take_over() -> None:
    assert Succession(A, Sessions()).ask(ledger("abc", casting_vote=""), sure=True) == []
