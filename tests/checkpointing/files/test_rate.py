"""The limit of bandwidth."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from undaunted.checkpointing.files.rate import Bucket


def test_a_burst_is_free_and_the_rest_waits() -> None:
    bucket = Bucket(100.0, 50.0, 0.0)
    assert bucket.take(50, 0.0) == 0
    assert bucket.take(100, 0.0) == 1.0
    assert bucket.take(100, 1.0) == 1.0


def test_a_pause_fills_no_more_than_a_burst() -> None:
    bucket = Bucket(100.0, 50.0, 0.0)
    assert bucket.take(60, 1000.0) == 0.1


def test_a_clock_that_stands_or_goes_back() -> None:
    bucket = Bucket(100.0, 0.0, 5.0)
    assert bucket.take(100, 4.0) == 1.0
    assert bucket.take(100, 5.0) == 2.0


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=50), st.floats(1.0, 1e6))
def test_who_waits_as_told_keeps_the_rate(counts: list[int], rate: float) -> None:
    now, bucket = 0.0, Bucket(rate, 100.0, 0.0)
    for count in counts:
        now += bucket.take(count, now)
    assert now >= (sum(counts) - 100.0) / rate * 0.999999
    assert now <= sum(counts) / rate * 1.000001
