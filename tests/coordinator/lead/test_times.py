from __future__ import annotations

import pytest

from undaunted.coordinator.lead.times import Durations


@pytest.mark.parametrize("lease_s", [0.1, 0.5, 1.0, 2.0, 5.0, 30.0, 600.0])
def test_they_are_in_order_whatever_the_lease(lease_s: float) -> None:
    """The table itself refuses an order in which two rounds might run."""
    lasts = Durations(lease_s)
    assert lasts.grace_s < lasts.stopped_s
    assert lasts.grace_s <= lease_s


def test_a_shorter_lease_makes_everything_shorter() -> None:
    short, long = Durations(1.0), Durations(5.0)
    names = ("stopped_s", "claims_after_silence_s", "claims_after_reset_s", "elected_s")
    for name in (*names, "asks_after_pause_s"):
        assert getattr(short, name) < getattr(long, name)


@pytest.mark.parametrize("lease_s", [0.1, 5.0, 600.0])
@pytest.mark.parametrize("join_timeout_s", [0.5, 300.0, 3600.0, 86400.0 * 30])
def test_it_is_known_that_a_job_has_ended_until_nobody_looks_for_it_any_more(
    lease_s: float, join_timeout_s: float
) -> None:
    kept_s = Durations(lease_s).ended_kept_s(join_timeout_s, away_timeout_s=60.0)
    assert kept_s >= max(900, lease_s + 60 + join_timeout_s)
