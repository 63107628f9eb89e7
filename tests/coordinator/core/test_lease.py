from __future__ import annotations

from undaunted.coordinator.core.lease import Lease

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
