"""Reports are kept until somebody has them; a lease begins when its message was sent.

Where a follower looks for a leader, and how often.
"""

from __future__ import annotations

from tests.coordinator.lead.seats import committee, ledger, table
from undaunted.coordinator.lead.follower import (
    KEPT_REPORTS,
    Lease,
    Reports,
    Search,
)
from undaunted.coordinator.lead.knowledge import Knowledge
from undaunted.coordinator.lead.messages import FollowerConfig
from undaunted.coordinator.lead.times import REDIAL_FIRST_S, REDIAL_LONGEST_S, SEEK_QUIETLY_S
from undaunted.coordinator.policy import messages as m


def failed(number: int = 0) -> m.NodeFailed:
    return m.NodeFailed("b", number, "x")


def numbers(reports: Reports, *, new_leader: bool = False) -> list[int]:
    return [each.number for each in reports.to_send(new_leader=new_leader)]


def test_what_is_not_acknowledged_is_sent_again_and_all_to_another_leader() -> None:
    reports = Reports()
    assert [reports.add(failed()).number for _ in range(3)] == [1, 2, 3]
    reports.acknowledge(2)
    reports.acknowledge(1)
    assert numbers(reports) == [3]
    assert numbers(reports, new_leader=True) == [1, 2, 3]


def test_those_of_earlier_rounds_are_forgotten() -> None:
    reports = Reports()
    reports.add(failed(0))
    reports.add(failed(1))
    reports.forget_before(1)
    assert numbers(reports) == [2]
    reports.add(m.Preempted("b", 15, "SIGTERM"))
    reports.forget_before(2)
    assert numbers(reports) == []


def test_of_evidence_which_may_be_long_only_the_newest_is_kept() -> None:
    reports = Reports()
    reports.add(m.HangSuspected("a", 0))
    reports.add(m.NodeEvidence("a", 0, b"old"))
    reports.add(m.NodeEvidence("a", 0, b"new"))
    kept = [report.event for report in reports.to_send(new_leader=True)]
    assert kept == [m.HangSuspected("a", 0), m.NodeEvidence("a", 0, b"new")]


def test_a_hang_after_which_the_node_goes_on_is_not_told_to_the_next_leader() -> None:
    reports = Reports()
    for event in (
        m.HangSuspected("a", 0),
        m.NodeEvidence("a", 0, b"seen"),
        m.NodeFailed("a", 0, "hangs", hang=True),
        m.NodeFinished("a", 0),
    ):
        reports.add(event)
    reports.forget_hang()
    assert numbers(reports, new_leader=True) == [4]


def test_as_many_are_kept_as_a_round_may_have() -> None:
    reports = Reports()
    for _ in range(KEPT_REPORTS + 10):
        reports.add(failed())
    assert numbers(reports)[0] == 11
    assert len(numbers(reports)) == KEPT_REPORTS


S = 1_000_000_000


def test_what_is_left_of_it() -> None:
    lease = Lease(5.0, opened_ns=10 * S)
    lease.welcomed(6.0)
    assert lease.left_s(lease.sent_ns, 13 * S) == 3.0
    assert lease.until_ns == 16 * S


def test_it_begins_when_what_was_answered_was_sent() -> None:
    lease = Lease(5.0, opened_ns=10 * S)
    lease.welcomed(5.0)
    lease.answered(14 * S)
    lease.answered(13 * S)
    assert lease.until_ns == 19 * S
    lease.welcomed(5.0)
    assert lease.until_ns == 19 * S, "the same leader under a later epoch"


def search(*endpoints: str) -> Search:
    return Search(
        FollowerConfig("b", "b1", slots=1, endpoints=endpoints, address="host-b:1"), ["first:1"]
    )


def test_endpoints_and_members_take_turns_after_what_is_known_for_certain() -> None:
    looks = search("x:1", "y:1")
    seen = [looks.address(table("abc")) for _ in range(5)]
    assert seen == ["first:1", "x:1", "host-a:1", "y:1", "host-c:1"]


def test_an_address_from_the_store_replaces_the_endpoints() -> None:
    looks = search("x:1")
    looks.elected = "z:1"
    assert [looks.address(()) for _ in range(3)] == ["first:1", "z:1", "z:1"]


def test_nothing_is_known() -> None:
    looks = search()
    assert [looks.address(()) for _ in range(2)] == ["first:1", ""]


def test_pauses_grow_until_a_leader_is_found() -> None:
    looks = search("x:1")
    assert looks.pause_s() == 0.0
    looks.address(())
    pauses = [looks.pause_s() for _ in range(8)]
    assert pauses[:2] == [REDIAL_FIRST_S, 2 * REDIAL_FIRST_S]
    assert pauses[-1] == REDIAL_LONGEST_S
    looks.found()
    assert looks.pause_s() == REDIAL_FIRST_S


def test_each_reason_is_said_once() -> None:
    """Addresses take turns, and with them the reasons."""
    looks = search("x:1")
    assert looks.to_say("x:1: refused", SEEK_QUIETLY_S - 1) == ""
    for reason in ("x:1: refused", "it does not lead"):
        assert reason in looks.to_say(reason, SEEK_QUIETLY_S)
    assert not any(looks.to_say(why, 99.0) for why in ("x:1: refused", "it does not lead"))


def test_members_of_a_table_that_was_prepared_are_asked_as_well() -> None:
    looks = search("x:1")
    seen = [looks.address(table("ab"), table("cd")) for _ in range(9)]
    assert set(seen) == {"first:1", "x:1", "host-a:1", "host-c:1", "host-d:1"}


def test_a_lost_leader_is_looked_for_where_it_was() -> None:
    looks = search("x:1", "y:1")
    looks.begin("here:1")
    seen = [looks.address(table("abc")) for _ in range(10)]
    assert seen[:5] == ["here:1", "x:1", "host-a:1", "here:1", "host-c:1"]
    assert seen[5:] == ["y:1", "host-c:1", "here:1", "host-a:1", "x:1"]
    looks = search("x:1")
    looks.begin("here:1")
    assert looks.address(()) == "here:1"
    looks.elected = "z:1"
    looks.begin("here:1")
    assert looks.address(()) == "z:1"


def test_only_its_leader_claims_from_a_ledger_that_it_is_to_keep_alone() -> None:
    """Others of the committee before do not know how that one has gone on."""
    known = ledger("abc", committee=(), before=committee("abc"))
    launchers = [("a", "a1"), ("a", "a2"), ("b", "b1"), ("c", "c1")]
    knowledge = [Knowledge(*launcher) for launcher in launchers]
    for each in knowledge:
        each.learn(known)
    assert [each.me for each in knowledge if each.votes] == [("a", "a1")]
    for each in knowledge:
        each.learn(ledger("abc", committee=(), version=4))
    assert not any(each.votes for each in knowledge)
