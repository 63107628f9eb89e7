"""Which limits are passed, and when to look next."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.inprocess.core.messages import Limits
from undaunted.inprocess.core.reading import Phase, Reading
from undaunted.inprocess.core.watchdog import Ages, Passed, Patience, judge

NS = 1_000_000_000
LIMITS = Limits()  # soft 60 s, hard 90 s, barrier 120 s


def look(phase: Phase, *, soft: bool = True, unguarded: int = 0, **ages: Any) -> tuple[str, float]:
    reading = Reading(0, phase=phase, unguarded=unguarded, atomic=int("atomic" in ages))
    verdict = judge(reading, Ages(**{"auto": 0.0, **ages}), LIMITS, soft=soft)
    return verdict.passed.name, round(verdict.look_in_s, 1)


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        ({"auto": 0.0}, ("NONE", 60.0)),
        ({"auto": 59.0}, ("NONE", 1.0)),
        ({"auto": 61.0}, ("SOFT", 0.0)),
        ({"auto": 0.0, "ping": 50.0}, ("NONE", 10.0)),
        ({"auto": 0.0, "ping": 61.0}, ("SOFT", 0.0)),
        ({"auto": 95.0}, ("SOFT", 0.0)),  # one after the other
        ({"auto": 95.0, "soft": False}, ("HARD", 0.0)),
        ({"auto": 0.0, "ping": 91.0, "soft": False}, ("HARD", 0.0)),
        ({"auto": 61.0, "soft": False}, ("NONE", 29.0)),
        ({"auto": 61.0, "atomic": 61.0}, ("SOFT", 0.0)),
        ({"auto": 95.0, "atomic": 100.0, "soft": False}, ("NONE", 20.0)),
        ({"auto": 121.0, "atomic": 121.0, "soft": False}, ("HARD", 0.0)),
        ({"auto": 0.0, "owed": 40.0, "soft": False}, ("NONE", 50.0)),
        ({"auto": 0.0, "owed": 91.0, "soft": False}, ("HARD", 0.0)),
    ],
)
def test_a_rank_in_the_function(ages: dict[str, Any], expected: tuple[str, float]) -> None:
    assert look(Phase.RUNNING, **ages) == expected


@pytest.mark.parametrize(
    ("phase", "ages", "expected"),
    [
        (Phase.RECOVERING, {"auto": 61.0}, ("NONE", 29.0)),
        (Phase.RECOVERING, {"auto": 91.0}, ("HARD", 0.0)),
        (Phase.RECOVERING, {"auto": 0.0, "ping": 1000.0}, ("NONE", 90.0)),
        (Phase.WAITING, {"auto": 1000.0}, ("NONE", 60.0)),
        (Phase.WAITING, {"auto": 0.0, "owed": 91.0}, ("HARD", 0.0)),
        (Phase.OUTSIDE, {"auto": 1000.0, "ping": 1000.0}, ("NONE", 60.0)),
    ],
)
def test_other_phases(phase: Phase, ages: dict[str, Any], expected: tuple[str, float]) -> None:
    assert look(phase, **ages) == expected


@pytest.mark.parametrize("phase", Phase)
def test_without_hang_protection_nothing_is_limited(phase: Phase) -> None:
    assert look(phase, auto=1e6, owed=1e6, unguarded=2) == ("NONE", 30.0)


def test_the_text_says_what_has_not_happened() -> None:
    verdict = judge(Reading(0, phase=Phase.RUNNING), Ages(0.0, ping=61.5), LIMITS, soft=True)
    assert verdict.text == "it has not called ping() for 61.5 s (soft timeout)"


seconds = st.floats(0, 1000, allow_nan=False)


@given(st.sampled_from(Phase), seconds, st.none() | seconds, st.none() | seconds, st.booleans())
def test_nothing_is_passed_before_the_next_look(
    phase: Phase, auto: float, ping: float | None, owed: float | None, soft: bool
) -> None:
    """Looking when it was asked for is enough: no limit is passed long before."""
    reading, ages = Reading(0, phase=phase), Ages(auto, ping, None, owed)
    verdict = judge(reading, ages, LIMITS, soft=soft)
    assert verdict.look_in_s > 0
    if verdict.passed is Passed.NONE:
        almost = verdict.look_in_s - 0.01

        def later(age: float | None) -> float | None:
            return None if age is None else age + almost

        ages = Ages(auto + almost, later(ping), None, later(owed))
        assert judge(reading, ages, LIMITS, soft=soft).passed is Passed.NONE


def test_ages_are_times_since() -> None:
    patience = Patience()
    patience.expect(60, 0)
    patience.wake(60 * NS + 1000)  # as late as timers are
    assert patience.age("auto", 10 * NS, 60 * NS) == 50.0


def test_time_for_which_the_guard_stood_still_does_not_count() -> None:
    patience = Patience()
    patience.expect(10, 0)
    assert patience.age("ping", 0, 0) == 0.0
    patience.wake(110 * NS)
    assert patience.age("ping", 0, 110 * NS) == 10.0
    # First seen afterwards: a moment of before, and one of after.
    assert patience.age("auto", 9 * NS, 110 * NS) == 1.0
    assert patience.age("atomic", 110 * NS, 112 * NS) == 2.0
    patience.wake(111 * NS)  # not counted twice
    assert patience.age("ping", 0, 111 * NS) == 11.0


def test_a_new_moment_begins_anew() -> None:
    patience = Patience()
    patience.age("auto", 0, 0)
    patience.expect(1, 0)
    patience.wake(101 * NS)
    assert patience.age("auto", 102 * NS, 103 * NS) == 1.0
