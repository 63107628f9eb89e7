"""Reports are kept until somebody has them; a lease begins when its message was sent."""

from __future__ import annotations

from undaunted.coordinator.core.follower import KEPT_REPORTS, Lease, Reports
from undaunted.coordinator.core.messages import NodeFailed, Preempted


def failed(number: int = 0) -> NodeFailed:
    return NodeFailed("b", number, "x")


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
    reports.add(Preempted("b", 15, "SIGTERM"))
    reports.forget_before(2)
    assert numbers(reports) == []


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
