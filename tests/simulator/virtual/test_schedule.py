from __future__ import annotations

import pytest

from simulator.virtual import schedule as module
from simulator.virtual.schedule import Schedule


def test_entries_happen_in_order_of_time_and_then_of_making() -> None:
    schedule, seen = Schedule(), []
    for time, name in ((5, "late"), (3, "first"), (3, "second"), (1, "early")):
        schedule.at(time, seen.append, name)
    schedule.run(3)
    assert (seen, schedule.now) == (["early", "first", "second"], 3)
    schedule.run(10)
    assert (seen[-1], schedule.now, schedule.entries) == ("late", 10, 4)


def test_an_entry_in_the_past_happens_now() -> None:
    schedule, seen = Schedule(), []
    schedule.run(10)
    schedule.at(3, lambda _: seen.append(schedule.now), None)
    schedule.run(10)
    assert seen == [10]


def test_a_run_stops_where_it_is_told_to() -> None:
    schedule, seen = Schedule(), []
    for time in (1, 2, 3):
        schedule.at(time, seen.append, time)
    schedule.run(10, stop=lambda: len(seen) == 2)
    assert (seen, schedule.now) == ([1, 2], 2)


def test_a_circle_in_which_no_time_passes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_AT_ONCE", 100)
    schedule = Schedule()

    def again(_: None) -> None:
        schedule.at(schedule.now, again, None)

    for time in range(200):
        schedule.at(time, int, 0)
    schedule.run(200)
    schedule.at(300, again, None)
    with pytest.raises(AssertionError, match="time stands still"):
        schedule.run(400)
    assert schedule.now == 300
