"""Going on with a job that had begun before."""

from __future__ import annotations

import pytest

from tests.coordinator.core.seats import ledger
from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import leader_messages as c
from undaunted.coordinator.core import messages as m
from undaunted.coordinator.core.config import PolicyConfig
from undaunted.coordinator.core.recovery import AFTER_RESTART_S, AFTER_TAKEOVER_S, Recovery
from undaunted.coordinator.core.sessions import Session, Sessions

KNOWN = ledger("abc", round=4, restarts_used=2)


def recovery(
    nodes: str, lost: str = "", *, durable: bool = False, silent: tuple[str, ...] = ()
) -> Recovery:
    """Of a leader that ``nodes`` have come back to: upper case ones as another agent."""
    sessions = Sessions()
    for link, name in enumerate(nodes):
        node = name.lower()
        incarnation = f"{node}1" if name == node else "later"
        hello = p.Hello(node=node, incarnation=incarnation, slots=2, round=4, running=node != "b")
        sessions.add(Session(hello, link, 0))
    config = c.LeaderConfig("job", PolicyConfig(max_restarts=3), node="a", durable=durable)
    return Recovery(config, sessions, lost, silent)


@pytest.mark.parametrize(
    ("made", "expected_s"),
    [
        (recovery(""), 5 + AFTER_RESTART_S),
        (recovery("", durable=True), 5),
        (recovery("", "c"), AFTER_TAKEOVER_S),
    ],
)
def test_how_long_members_are_waited_for(made: Recovery, expected_s: float) -> None:
    assert made.timer() == c.SetTimer("recover", 0, expected_s)


def test_nobody_waits_for_the_leader_that_was_replaced() -> None:
    assert recovery("abc").all_back(KNOWN)
    assert not recovery("ab").all_back(KNOWN)
    assert not recovery("abC").all_back(KNOWN)
    assert recovery("ab", "c").all_back(KNOWN)


def test_nor_for_members_that_have_not_answered_before_the_take_over() -> None:
    assert recovery("a", "c", silent=("b",)).all_back(KNOWN)
    assert not recovery("a", "c").all_back(KNOWN)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (recovery("ab"), "it has not come back"),
        (recovery("abC"), "its launcher was started again"),
        (recovery("ab", "c"), "it led the job, and the others cannot reach it any more"),
    ],
)
def test_who_is_missed_and_why(made: Recovery, why: str) -> None:
    assert made.losses(KNOWN) == [m.NodeLost("c", f"node c is lost: {why}")]


def test_who_is_here_and_no_member() -> None:
    assert [each.node for each in recovery("abCd").newcomers(KNOWN)] == ["c", "d"]


def test_members_without_ranks_have_failed_and_stopped() -> None:
    failed, stopped = recovery("abc").idle(KNOWN)
    assert isinstance(failed, m.NodeFailed)
    assert (failed.node, failed.round, failed.victim) == ("b", 4, True)
    assert stopped == m.NodeStopped("b", 4)


def test_the_policy_goes_on_where_the_other_stopped() -> None:
    policy = recovery("a").policy(KNOWN)
    assert (policy.round, policy.restarts_used) == (4, 2)
    assert policy.running
    assert [place.node for place in policy.places] == ["a", "b", "c"]
