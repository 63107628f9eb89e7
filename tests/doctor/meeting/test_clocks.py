from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from undaunted.doctor.meeting_judge import best, estimate
from undaunted.doctor.meeting_messages import Clock, Pong

NS = st.integers(0, 10**9)


@given(st.integers(-(10**12), 10**12), NS, NS, NS)
def test_the_truth_is_within_the_error(ahead: int, there: int, work: int, back: int) -> None:
    sent = 10**18
    got = sent + there + ahead
    answered = got + work
    clock = estimate(Pong(sent, got, answered), sent + there + work + back)
    assert abs(clock.ahead_ns - ahead) <= clock.error_ns + 1
    assert clock.error_ns <= (there + back + 1) // 2


def test_the_least_traffic_counts() -> None:
    assert best([Clock(5, 9), Clock(7, 2), Clock(6, 3)]) == Clock(7, 2)


def test_a_clock_that_is_set_back_meanwhile() -> None:
    assert estimate(Pong(1000, 10, 20), 500).error_ns == 0
