from __future__ import annotations

from undaunted.coordinator.core.lease import Lease

S = 1_000_000_000


def test_what_is_left_of_it() -> None:
    lease = Lease(5.0, opened_ns=10 * S)
    lease.welcomed(6.0, 12 * S)
    assert lease.left_s(lease.heard_ns, 15 * S) == 3.0
    assert lease.until_ns == 18 * S


def test_alone_counts_from_what_the_leader_has_certainly_heard() -> None:
    lease = Lease(5.0, opened_ns=10 * S)
    lease.welcomed(5.0, 12 * S)
    assert lease.alone_until_ns(17 * S, 60.0) == (10 + 5 + 60) * S
    lease.answered(14 * S)
    lease.answered(13 * S)
    assert lease.alone_until_ns(30 * S, 60.0) == (14 + 5 + 60) * S
    assert lease.alone_until_ns(15 * S, 60.0) == (15 + 60) * S, "the connection was reset"
