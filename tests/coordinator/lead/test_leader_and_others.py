"""Which members a leader asks for another leader, and when it gives way to that."""

from __future__ import annotations

import pytest

from tests.coordinator.lead.seats import ledger
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.leader import ASK_AT_ONCE, Leader, LeaderState
from undaunted.coordinator.lead.sessions import Session
from undaunted.coordinator.policy.config import PolicyConfig

A = c.LeaderConfig("job", PolicyConfig(), "a")


def leading(known: p.Ledger, config: c.LeaderConfig = A, *, confirmed: bool = True) -> Leader:
    """The leader of epoch 7, which has a quorum, or recovers."""
    leader = Leader(config, known, 7)
    leader.state = LeaderState.LEADING if confirmed else LeaderState.RECOVERING
    return leader


def gives_way(leader: Leader, answer: p.MissAnswer) -> str:
    """To whom, "" = to nobody."""
    done = [each for each in leader.handle(c.Answered("b", answer), 0) if isinstance(each, c.Done)]
    assert bool(done) == (leader.state is LeaderState.DEPOSED)
    return done[0].successor if done else ""


def answer(
    epoch: int,
    leader: str = "b:1",
    *,
    lost: bool = False,
    begun: int = 0,
    known: int | None = None,
) -> p.MissAnswer:
    known = epoch if known is None else known
    return p.MissAnswer(
        node="b",
        incarnation="b1",
        epoch=epoch,
        lost=lost,
        leader=leader,
        round=begun,
        ledger_epoch=known,
    )


@pytest.mark.parametrize(
    ("said", "confirmed", "expected"),
    [
        (answer(8), True, "b:1"),
        (answer(8, ""), True, ""),
        (answer(8, lost=True), True, ""),
        (answer(7), False, ""),
        (answer(6), True, ""),
        (answer(6), False, ""),  # that one gives way
    ],
)
def test_it_gives_way_to_a_later_leader(said: p.MissAnswer, confirmed: bool, expected: str) -> None:
    assert gives_way(leading(ledger(epoch=7), confirmed=confirmed), said) == expected


@pytest.mark.parametrize(
    ("said", "confirmed", "expected"),
    [
        (answer(8, known=7), True, ""),  # nobody has agreed to that one yet
        (answer(8, known=7), False, "b:1"),
        (answer(8, known=6), False, ""),
        (answer(6, known=8), True, "b:1"),
    ],
)
def test_what_counts_first_is_who_a_quorum_has_agreed_to_later(
    said: p.MissAnswer, confirmed: bool, expected: str
) -> None:
    assert gives_way(leading(ledger(epoch=7), confirmed=confirmed), said) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (answer(6), "b:1"),
        (answer(5), "b:1"),  # has written the ledger
        (answer(6, known=5), ""),  # has adopted it as well, earlier
        (answer(8, known=5), "b:1"),
        (answer(6, known=4), ""),
    ],
)
def test_a_leader_that_nobody_has_agreed_to_gives_way_to_one_of_an_earlier_epoch(
    said: p.MissAnswer, expected: str
) -> None:
    assert gives_way(leading(ledger("abc", epoch=5), confirmed=False), said) == expected


@pytest.mark.parametrize(("begun", "expected"), [(2, ""), (3, "b:1"), (4, "b:1")])
def test_of_two_leaders_that_nobody_has_agreed_to_one_with_a_later_round_goes_on(
    begun: int, expected: str
) -> None:
    known = ledger("abc", epoch=5, round=3)
    assert gives_way(leading(known, confirmed=False), answer(8, known=5, begun=begun)) == expected


def test_a_leader_of_a_later_epoch_gives_way_to_one_that_has_begun_a_later_round() -> None:
    known = ledger("abc", epoch=5, round=3)
    assert gives_way(leading(known, confirmed=False), answer(6, known=5, begun=4)) == "b:1"


@pytest.mark.parametrize("epoch", [6, 8])
def test_a_job_that_has_begun_goes_before_one_that_has_not(epoch: int) -> None:
    empty = leading(ledger(round=-1, table=()))
    assert gives_way(empty, answer(epoch, begun=0)) == "b:1"
    assert gives_way(leading(ledger(), confirmed=False), answer(epoch, begun=-1)) == ""


def test_who_is_at_the_endpoints_is_asked_by_a_leader_that_is_confirmed() -> None:
    about = c.LeaderConfig("job", PolicyConfig(), "a", address="a:1", endpoints=("z:9",))
    known = ledger("ab", round=3, birth=5)
    (ask,) = leading(known, about)._ask_absent()
    assert (ask.address, ask.message.leader) == ("z:9", "a:1")
    assert (ask.message.birth, ask.message.round) == (5, 3)
    assert leading(known, about, confirmed=False)._ask_absent() == []


def test_members_that_are_not_here_are_asked_some_at_a_time() -> None:
    nodes = "abcdefghijklmnopqrst"
    leader = leading(ledger(nodes))
    leader._sessions.add(Session(p.Hello(node="a", incarnation="a1", slots=2), 1, 0))
    asked = [ask.node for _ in range(3) for ask in leader._ask_absent()]
    assert len(asked) == 3 * ASK_AT_ONCE
    assert set(asked) == set(nodes) - {"a"}


def test_nobody_is_asked_where_nobody_can_take_over() -> None:
    assert leading(ledger("abc", committee=(), fenced=False))._ask_absent() == []
