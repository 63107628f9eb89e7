"""A leader that goes on with a job that had begun before."""

from __future__ import annotations

import pytest

from tests.coordinator.lead.seats import committee, ledger
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.leader import (
    Leader,
    LeaderState,
)
from undaunted.coordinator.lead.sessions import Session
from undaunted.coordinator.lead.times import AFTER_RESTART_S, Durations
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.config import PolicyConfig

KNOWN = ledger(
    "abc", round=4, restarts_used=2, history=b"what failed", failure="so", slow=(3,), turned=1
)


def recovering(
    nodes: str, lost: str = "", *, store: bool = False, silent: tuple[str, ...] = ()
) -> Leader:
    """A leader that ``nodes`` have come back to: upper case ones as another agent."""
    config = c.LeaderConfig("job", PolicyConfig(max_restarts=3), node="a", store=store)
    leader = Leader(config, KNOWN, 7, lost, silent)
    for link, name in enumerate(nodes):
        node = name.lower()
        incarnation = f"{node}1" if name == node else "later"
        hello = p.Hello(node=node, incarnation=incarnation, slots=2, round=4, running=node != "b")
        leader._sessions.add(Session(hello, link, 0))
    return leader


@pytest.mark.parametrize(
    ("leader", "expected_s"),
    [
        (recovering(""), 5 + AFTER_RESTART_S),
        (recovering("", store=True), 5),
        (recovering("", "c"), Durations(5.0).after_take_over_s),
    ],
)
def test_how_long_members_are_waited_for(leader: Leader, expected_s: float) -> None:
    assert c.SetTimer("recover", expected_s) in leader.handle(c.Begin(), 0)


@pytest.mark.parametrize(("keepers", "written"), [("", True), ("abc", False)])
def test_an_epoch_that_nobody_has_to_agree_to_is_written_down_at_once(
    keepers: str, written: bool
) -> None:
    """Started again before it has recovered, the coordinator would have an earlier epoch."""
    known = ledger("abc", round=4, committee=committee(keepers))
    commands = Leader(c.LeaderConfig("job", PolicyConfig()), known, 7).handle(c.Begin(), 0)
    epochs = [each.ledger.epoch for each in commands if isinstance(each, c.Persist)]
    assert epochs == ([7] if written else [])


def test_nobody_waits_for_the_leader_that_was_replaced() -> None:
    assert recovering("abc")._all_are_back()
    assert not recovering("ab")._all_are_back()
    assert not recovering("abC")._all_are_back()
    assert recovering("ab", "c")._all_are_back()


def test_nor_for_members_that_have_not_answered_before_the_take_over() -> None:
    assert recovering("ac", "", silent=("b",))._all_are_back()
    assert not recovering("ac")._all_are_back()


def test_a_majority_of_the_committee_is_waited_for_in_any_case() -> None:
    assert not recovering("a", "c", silent=("b",))._all_are_back()


@pytest.mark.parametrize(
    ("leader", "why"),
    [
        (recovering("ab"), "it has not come back"),
        (recovering("abC"), "its launcher was started again"),
        (recovering("ab", "c"), "it led the job, and the others cannot reach it any more"),
    ],
)
def test_who_is_missed_and_why(leader: Leader, why: str) -> None:
    assert leader._losses(0) == [m.NodeLost("c", f"node c is lost: {why}")]


def test_who_is_here_and_no_member() -> None:
    assert [each.node for each in recovering("abCd")._newcomers()] == ["c", "d"]


def test_members_without_ranks_have_failed_and_stopped() -> None:
    failed, stopped = recovering("abc")._idle_members()
    assert isinstance(failed, m.NodeFailed)
    assert (failed.node, failed.round, failed.victim) == ("b", 4, True)
    assert stopped == m.NodeStopped("b", 4)


def test_what_is_known_of_rounds_that_are_over_goes_on() -> None:
    policy = recovering("abc")._restored_policy()
    assert (policy.history, policy.slow_before, policy.turned) == (b"what failed", (3,), 1)
    assert policy.failure == "so"  # the next round's ranks are told


def ordered(order: m.NodeEvent) -> tuple[Leader, list[c.LeaderCommand]]:
    """A leader that has gone on with all members, and what it does about an order."""
    leader = recovering("acd")
    leader.handle(c.Begin(), 0)
    leader.handle(c.TimerFired("recover", 0), 0)
    return leader, leader.handle(c.Received(0, p.Report(number=1, event=order)), 0)


LIMITS = m.LimitsOrdered("a", 4, {"heartbeat": 9.0}, "somebody")
STOP = m.StopOrdered("a", 4, "somebody")


@pytest.mark.parametrize(("order", "name"), [(LIMITS, "limits"), (STOP, "stop")])
def test_everybody_hears_at_once_of_an_order_that_the_next_leader_has_to_know(
    order: m.NodeEvent, name: str
) -> None:
    """Whoever has given it, and the leader that has taken it, may be lost in a moment."""
    leader, commands = ordered(order)
    assert getattr(leader.ledger, name) is not None
    told = {
        each.link: getattr(each.message.ledger, name)
        for each in commands
        if isinstance(each, c.Send) and isinstance(each.message, p.Learn)
    }
    assert told == dict.fromkeys((0, 1, 2), getattr(leader.ledger, name))


def test_limits_that_were_ordered_hold_for_nodes_that_join_under_the_next_leader() -> None:
    leader, _ = ordered(LIMITS)
    policy = Leader(leader.config, leader.ledger, 9, "a")._restored_policy()
    assert policy.limits == m.NewLimits({"heartbeat": 9.0}, "somebody")


def test_the_next_leader_ends_the_job_that_was_to_be_stopped() -> None:
    before, _ = ordered(STOP)
    config = c.LeaderConfig("job", PolicyConfig(max_restarts=3), node="c")
    leader = Leader(config, before.ledger, 9, "a")
    for link, node in enumerate("bc"):
        hello = p.Hello(node=node, incarnation=f"{node}1", slots=2, round=4, running=True)
        leader.handle(c.Received(link, hello), 0)
    leader.handle(c.TimerFired("recover", 0), 0)
    for link, node in enumerate("bc"):
        stopped = p.Report(number=1, event=m.NodeStopped(node, 4))
        leader.handle(c.Received(link, stopped), 0)
    assert leader.policy.ended
    assert leader.policy.ending is not None
    assert "somebody asked for a stop" in leader.policy.ending.reason


def test_the_policy_goes_on_where_the_other_stopped() -> None:
    leader = recovering("a")
    leader.handle(c.TimerFired("recover", 0), 0)
    assert leader.policy.round == 4
    assert leader.policy.restarts_used == 3, "two nodes are lost"
    assert [place.node for place in leader.policy.places] == ["a", "b", "c"]


ALONE = {"leader": "a", "committee": (), "fenced": False}


@pytest.mark.parametrize(
    ("known", "goes_on"),
    [
        (ledger("bc", round=5, epoch=2, version=9, **ALONE), 5),
        (ledger("bc", round=5, epoch=2, version=9, birth=1, **ALONE), 4),  # another job
        (ledger("abc", round=3, epoch=2, version=9), 4),
    ],
)
def test_members_without_votes_that_have_gone_on_are_followed(
    known: p.Ledger, goes_on: int
) -> None:
    """The leader has a later epoch, and what it knows is of before."""
    config = c.LeaderConfig("job", PolicyConfig(), node="a")
    leader = Leader(config, ledger("bc", round=4, epoch=1, **ALONE), 7)
    leader.handle(c.Begin(), 0)
    for link, node in enumerate("bc"):
        hello = p.Hello(
            node=node, incarnation=f"{node}1", slots=2, round=5, running=True, ledger=known
        )
        leader.handle(c.Received(link, hello), 0)
    assert (leader.policy.round, leader.ledger.epoch) == (goes_on, 7)


OLDER = ledger("bcd", round=4, version=8)
NEWER = ledger("bcd", round=4, version=10, restarts_used=2, excluded={"b": "bad NIC"})


def comes(leader: Leader, node: str, known: p.Ledger, link: int) -> None:
    hello = p.Hello(node=node, incarnation=f"{node}1", slots=2, round=4, ledger=known)
    leader.handle(c.Received(link, hello), 0)
    leader.handle(c.Received(link, p.Renew(epoch=leader.epoch, round=4)), 0)


def after_its_disk_was_lost() -> Leader:
    """A leader that has gone on from what the first member that came knew."""
    config = c.LeaderConfig("job", PolicyConfig(max_restarts=9), node="a", incarnation="a2")
    leader = Leader(config, epoch=7)
    leader.handle(c.Begin(), 0)
    comes(leader, "c", OLDER, 1)
    assert leader.state is LeaderState.RECOVERING
    return leader


def test_what_the_member_that_knows_most_has_heard_of_the_round_is_gone_on_from() -> None:
    leader = after_its_disk_was_lost()
    comes(leader, "d", NEWER, 2)
    assert leader.ledger.epoch == leader.epoch, "c and d agree"
    leader.handle(c.TimerFired("recover", 0), 0)
    assert (leader.policy.restarts_used, leader.policy.roster.excluded) == (3, {"b": "bad NIC"})


def test_a_member_that_knows_most_and_comes_later_finds_no_leader_that_knows_less() -> None:
    leader = after_its_disk_was_lost()
    leader.handle(c.TimerFired("recover", 0), 0)
    assert leader.state is LeaderState.LEADING
    comes(leader, "d", NEWER, 2)
    assert leader.state is LeaderState.DEPOSED


def test_so_it_is_not_once_a_quorum_has_agreed() -> None:
    leader = after_its_disk_was_lost()
    comes(leader, "d", OLDER, 2)
    leader.handle(c.TimerFired("recover", 0), 0)
    comes(leader, "b", NEWER, 3)
    assert leader.state is LeaderState.LEADING


@pytest.mark.parametrize(
    ("known", "asks"),
    [(OLDER, False), (NEWER, True), (ledger("bcd", round=4, birth=9, version=1), True)],
)
def test_tables_are_asked_for_where_the_leader_may_have_to_go_on_from_them(
    known: p.Ledger, asks: bool
) -> None:
    leader = after_its_disk_was_lost()
    hello = p.Hello(node="d", incarnation="d1", slots=2, round=4, ledger=p.brief(known), brief=True)
    commands = leader.handle(c.Received(2, hello), 0)
    said = [each.message for each in commands if isinstance(each, c.Send)]
    assert any(isinstance(each, p.Refused) and each.tables for each in said) == asks
    assert any(isinstance(each, p.Welcome) for each in said) != asks
    assert leader.ledger.table == OLDER.table


def taken_over(*orders: m.Ordered, ends: bool = False) -> Leader:
    """A leader that has carried out orders, and goes on then with a job that had begun before."""
    policy = PolicyConfig(min_nodes=2, max_nodes=4, max_restarts=9)
    leader = Leader(c.LeaderConfig("job", policy, node="a", incarnation="a2"), epoch=7)
    leader.handle(c.Begin(), 0)
    for link, node in enumerate("ade"):
        hello = p.Hello(node=node, incarnation=f"{node}2", slots=2)
        leader.handle(c.Received(link, hello), 0)
    for number, order in enumerate(orders, 1):
        leader.handle(c.Received(0, p.Report(number=number, event=order)), 0)
    known = ledger("bc", round=4, epoch=2, **ALONE)
    for link, node in enumerate("bc", 10):
        about = {"incarnation": f"{node}1", "slots": 2, "round": 4, "running": True}
        leader.handle(c.Received(link, p.Hello(node=node, ledger=known, **about)), 0)
    leader.handle(c.TimerFired("recover", 0), 0)
    assert ends or leader.policy.round == 4
    return leader


def test_what_was_ordered_before_a_job_was_heard_of_holds_in_it() -> None:
    limits = m.LimitsOrdered("a", -1, {"heartbeat": 9.0}, "somebody")
    leader = taken_over(m.ExclusionOrdered("a", -1, "e", "somebody"), limits)
    assert leader.policy.running
    assert leader.ledger.excluded.keys() == {"e"}
    assert leader.ledger.limits == m.NewLimits({"heartbeat": 9.0}, "somebody")


def test_so_does_a_restart_and_only_one() -> None:
    restart = m.RestartOrdered("a", -1, "somebody")
    leader = taken_over(restart, restart)
    assert leader.policy.last.closing.reason == "somebody asked for a restart"
    assert leader.policy.restarts_used == 0


def test_an_order_that_was_refused_is_not_carried_out_later() -> None:
    leader = taken_over(m.ExclusionOrdered("a", -1, "z", "somebody"))
    assert leader.policy.running
    assert not leader.ledger.excluded


def test_a_job_that_was_ordered_to_end_ends_for_those_that_had_begun_it_before() -> None:
    leader = taken_over(m.StopOrdered("a", -1, "somebody"), ends=True)
    for link, node in enumerate("bc", 10):
        stopped = p.Report(number=1, event=m.NodeStopped(node, 4))
        commands = leader.handle(c.Received(link, stopped), 0)
        orders = [each.message for each in commands if isinstance(each, c.Send)]
        ends = [each.command for each in orders if isinstance(each, p.Order)]
        assert [(end.node, end.outcome) for end in ends] == [(node, m.Outcome.NO_RESTART)]
