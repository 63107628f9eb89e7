"""How long steps take."""

from __future__ import annotations

import pytest

from tests.top.pages import SECOND, section, stepping
from undaunted.progress.snapshot import PageSnapshot
from undaunted.top.speed import Speed, mean_s


def test_one_look_tells_the_mean_since_the_first_step() -> None:
    page, speed = stepping(10, 5 * SECOND), Speed()
    speed.look(page)
    assert speed.recent_s(page) == pytest.approx(0.5)


def test_two_looks_tell_what_was_between_them() -> None:
    speed = Speed()
    speed.look(stepping(10, 5 * SECOND))
    last = stepping(12, 9 * SECOND)
    speed.look(last)
    speed.look(last)  # in the middle of a step
    assert speed.recent_s(last) == pytest.approx(2.0)


def test_what_was_long_ago_does_not_count() -> None:
    speed = Speed()
    for second in range(10):
        speed.look(stepping(second, second * SECOND))
    for second in range(10, 17):
        speed.look(last := stepping(10 * second, second * SECOND))
    assert speed.recent_s(last) == pytest.approx(0.1)


def test_iterations_that_go_back_begin_anew() -> None:
    speed = Speed()
    speed.look(stepping(10, 5 * SECOND))
    page = stepping(2, 6 * SECOND, first_iteration=None)
    speed.look(page)
    assert speed.recent_s(page) is None


def test_without_steps() -> None:
    speed = Speed()
    speed.look(PageSnapshot())
    assert speed.recent_s(PageSnapshot()) is None
    assert mean_s(PageSnapshot()) is None


def test_the_mean_of_all_steps_of_the_round() -> None:
    assert mean_s(stepping(10, 5 * SECOND)) == pytest.approx(0.5)
    assert mean_s(stepping(0, SECOND)) is None


def test_sections_once_they_were_left_three_times() -> None:
    speed = Speed()
    for count, lasted_ns in enumerate([9 * SECOND, SECOND, 2 * SECOND], start=1):
        assert speed.sections_s() == {}
        page = stepping(1, 1, sections=section("io", None, count=count, last_ns=lasted_ns))
        speed.look(page)
        speed.look(page)
    assert speed.sections_s() == {"io": 2.0}
