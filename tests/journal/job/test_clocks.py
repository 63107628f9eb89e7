"""Clocks are related by order alone, however wrong the wall clocks are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from undaunted.journal.job.clocks import ClockOffset, Meeting, Visit, place

HOUR = 3600 * 10**9
S = 10**9


@dataclass
class Simulated:
    """Machines whose clocks are ``skews`` ahead of true time."""

    skews: list[int]
    meetings: list[Meeting]


@st.composite
def simulated(draw: st.DrawFn, rate_ppm: int = 0) -> Simulated:
    count = draw(st.integers(1, 6))
    skew = st.integers(-100 * HOUR, 100 * HOUR)
    skews = draw(st.lists(skew, min_size=count, max_size=count))
    now = 0
    meetings = []
    for _ in range(draw(st.integers(0, 6))):
        now += draw(st.integers(S, HOUR))
        members = draw(st.sets(st.integers(0, count - 1), min_size=1))
        wait = st.integers(0, 10 * S)
        came = {clock: now - draw(wait) for clock in sorted(members)}
        left = {clock: now + draw(wait) for clock in sorted(members)}

        def shown(clock: int, true: int) -> int:
            return true + skews[clock] + true * rate_ppm * clock // 10**6

        meetings.append([Visit(c, shown(c, came[c]), shown(c, left[c])) for c in sorted(members)])
        now += 10 * S
    return Simulated(skews, meetings)


@given(simulated())
def test_true_offsets_are_within_the_uncertainty(job: Simulated) -> None:
    places = place(job.meetings, [0] * len(job.skews))
    reference = next(n for n, each in enumerate(places) if each.method == "reference")
    for clock, found in enumerate(places):
        if found.uncertainty_ns is not None:
            true = job.skews[reference] - job.skews[clock]
            assert abs(found.offset_ns - true) <= found.uncertainty_ns
            assert not found.drifts


@given(simulated())
def test_nobody_leaves_a_meeting_before_all_have_come(job: Simulated) -> None:
    places = place(job.meetings, [None] * len(job.skews))
    for meeting in job.meetings:
        for one, other in product(meeting, meeting):
            came = one.came_ns + places[one.clock].offset_ns
            assert came <= other.left_ns + places[other.clock].offset_ns


@given(simulated())
def test_walls_count_only_for_clocks_that_never_met(job: Simulated) -> None:
    walls = [7 * HOUR * n for n in range(len(job.skews))]
    with_walls, without = (place(job.meetings, each) for each in (walls, [None] * len(job.skews)))
    for told, found in zip(with_walls, without, strict=True):
        assert (told.method == "wall") == (found.method == "start")
        if told.method != "wall":
            assert told == found


@given(simulated(rate_ppm=200))
def test_clocks_of_different_rates_get_a_place_and_an_uncertainty(job: Simulated) -> None:
    places = place(job.meetings, [None] * len(job.skews))
    assert len(places) == len(job.skews)
    assert all((each.uncertainty_ns is None) == (each.method == "start") for each in places)


def test_a_clock_that_met_only_others_is_placed_by_them() -> None:
    # 0 meets 1, 1 meets 2, within 2 s each; 1 is 100 s ahead of 0, and 2 is 100 s ahead of 1.
    meetings = [
        [Visit(0, 9, 11), Visit(1, 109, 111)],
        [Visit(1, 119, 121), Visit(2, 219, 221)],
    ]
    assert place(meetings, [None, None, None]) == [
        ClockOffset(100, 2, "order"),
        ClockOffset(0, 0, "reference"),
        ClockOffset(-100, 2, "order"),
    ]


def test_more_meetings_make_it_more_certain() -> None:
    one = [Visit(0, 0, 10), Visit(1, 0, 10)]
    other = [Visit(0, 20, 30), Visit(1, 28, 29)]
    assert place([one], [None, None])[1] == ClockOffset(0, 10, "order")
    assert place([one, other], [None, None])[1] == ClockOffset(-4, 6, "order")


def test_clocks_that_contradict_themselves_are_said_to_drift() -> None:
    early = [Visit(0, 0, 10), Visit(1, 0, 10)]
    late = [Visit(0, 1000, 1010), Visit(1, 1500, 1510)]
    assert place([early, late], [None, None])[1] == ClockOffset(-250, 260, "order", drifts=True)


def test_clocks_that_never_met_are_related_by_wall_clocks_and_that_is_said() -> None:
    alone = [Visit(0, 0, 10), Visit(1, 0, 10)]
    assert place([alone], [5000, 0, 5300]) == [
        ClockOffset(0, 0, "reference"),
        ClockOffset(0, 10, "order"),
        ClockOffset(300, None, "wall"),
    ]
    assert place([alone], [5000, 0, None])[2] == ClockOffset(0, None, "start")


def test_a_single_clock_is_the_axis() -> None:
    assert place([], [None]) == [ClockOffset(0, 0, "reference")]
    assert place([], []) == []
