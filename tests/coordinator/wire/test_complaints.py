from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from undaunted.coordinator.wire.complaints import Complaints


def test_some_are_said_and_the_others_counted() -> None:
    complaints = Complaints(lines=2, window_s=60)
    assert complaints.note("a", 100) == ["a"]
    assert complaints.due_s() is None
    assert complaints.note("b", 110) == ["b"]
    assert complaints.note("c", 120) == []
    assert complaints.note("d", 130) == []
    assert complaints.due_s() == 160
    assert complaints.flush(160) == ["2 more of these within 1 min 00 s, the last: d"]
    assert complaints.due_s() is None
    assert complaints.flush(161) == []


def test_the_line_with_the_count_is_one_of_the_next_window() -> None:
    complaints = Complaints(lines=2, window_s=60)
    for now in (0, 1, 2):
        complaints.note("x", now)
    assert len(complaints.flush(60)) == 1
    assert complaints.note("y", 61) == ["y"]
    assert complaints.note("z", 62) == []


def test_a_new_window_begins_with_a_complaint() -> None:
    complaints = Complaints(lines=1, window_s=60)
    assert complaints.note("a", 0) == ["a"]
    assert complaints.note("b", 1000) == ["b"]
    assert complaints.note("c", 1059) == []
    assert complaints.note("d", 1061) == ["1 more of these within 1 min 00 s, the last: c"]


@given(st.lists(st.floats(0, 50), max_size=80))
def test_every_complaint_is_said_or_counted_and_windows_are_bounded(pauses: list[float]) -> None:
    complaints = Complaints(lines=3, window_s=60)
    now = 0.0
    said: list[float] = []
    counted = 0
    for pause in pauses:
        now += pause
        for line in complaints.note("x", now):
            said.append(now)
            counted += 1 if line == "x" else int(line.split()[0])
    for line in complaints.flush(now + 60):
        counted += int(line.split()[0])
    assert counted == len(pauses)
    for first in said:
        assert sum(first <= at < first + 60 for at in said) <= 6
