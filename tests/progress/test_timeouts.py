from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.progress.limits import Limits
from undaunted.progress.snapshot import PageSnapshot, Phase, SectionSnapshot
from undaunted.progress.timeouts import LEAVING_S, Check, check, soft_s

S = 10**9
NOW = 1000 * S
STARTED = 900 * S
NONE = Limits(initial_heartbeat_s=None, heartbeat_s=None)


def look(page, limits, **options):
    return check(page, limits, **{"now_ns": NOW, "started_ns": STARTED, **options})


def watches(page, limits, **options):
    return [(e.watch, e.name) for e in look(page, limits, **options).expired]


def ago(seconds):
    return NOW - round(seconds * S)


def with_sections(open_for=None, **others):
    """A rank with these sections open for so many seconds (None: closed)."""
    sections = {
        name: SectionSnapshot(name, None if age is None else ago(age))
        for name, age in (open_for or {}).items()
    }
    return PageSnapshot(phase=Phase.INITIALIZED, sections=sections, initialized_ns=1, **others)


# --- a rank whose program has ended ---------------------------------------------------------------


@pytest.mark.parametrize("limit_s", [5.0, 60.0, None])
def test_limits_of_the_program_do_not_count_once_it_has_ended(limit_s):
    page = replace(
        with_sections({"step": 800.0}, heartbeat_ns=ago(900), out_of_section_since_ns=ago(900)),
        phase=Phase.LEAVING,
        leaving_ns=ago(850),
    )
    limits = Limits(heartbeat_s=limit_s, sections={"step": 1.0}, out_of_section_s=1.0)
    assert watches(page, limits) == []
    at = round((850 + LEAVING_S) * S)
    assert watches(page, limits, now_ns=NOW + at) == [("leaving", "")]


def test_a_rank_that_leaves_has_as_long_as_between_two_heartbeats_at_least():
    page = PageSnapshot(phase=Phase.LEAVING, leaving_ns=NOW)
    at = NOW + round(1.5 * LEAVING_S * S)
    found = look(page, Limits(heartbeat_s=2 * LEAVING_S), now_ns=at)
    assert not found.expired
    assert found.next_ns is not None


# --- the soft part of a limit ---------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "soft"), [(2700, 675), (120, 30), (60, 30), (20, 20)])
def test_a_rank_is_looked_at_a_quarter_into_its_limit_but_not_before_half_a_minute(limit, soft):
    assert soft_s(limit) == soft


@pytest.mark.parametrize(
    ("age", "silent", "next_s"), [(49.0, False, 1.0), (50.0, True, 150.0), (199.0, True, 1.0)]
)
def test_a_rank_is_silent_between_the_soft_part_and_the_limit(age, silent, next_s):
    page = PageSnapshot(phase=Phase.STEPPING, heartbeat_ns=ago(age), sections={})
    found = look(page, Limits(initial_heartbeat_s=None, heartbeat_s=200.0))
    assert not found.expired
    assert (found.silent is not None) is silent
    assert found.next_ns == NOW + min(next_s, 50.0) * S
    if found.silent is not None:
        assert (found.silent.since_ns, found.silent.limit_s) == (ago(age), 200.0)


def test_a_rank_that_has_passed_a_limit_is_not_silent_besides():
    page = with_sections({"a": 70.0, "b": 70.0})
    found = look(page, Limits(heartbeat_s=None, sections={"a": 60.0, "b": 600.0}))
    assert [each.name for each in found.expired] == ["a"]
    assert found.silent is None


def test_the_first_of_several_silences_counts():
    page = with_sections({"a": 100.0, "b": 90.0})
    found = look(page, Limits(heartbeat_s=None, sections={"a": 380.0, "b": 200.0}))
    assert found.silent is not None
    assert found.silent.name == "b"


# --- heartbeats -----------------------------------------------------------------------------------

HEARTBEAT = Limits(initial_heartbeat_s=50.0, heartbeat_s=10.0)


def test_a_late_heartbeat():
    page = PageSnapshot(phase=Phase.STEPPING, heartbeat_ns=ago(12.5))
    limits = Limits(heartbeat_s=10.0, sources={"heartbeat": "learned"})
    (expired,) = look(page, limits).expired
    assert (expired.watch, expired.name, expired.source) == ("heartbeat", "", "learned")
    assert (expired.since_ns, expired.deadline_ns) == (ago(12.5), ago(2.5))
    assert (expired.age_s, expired.limit_s) == (12.5, 10.0)


@pytest.mark.parametrize(("age", "expired"), [(9.999, False), (10, True), (11, True)])
def test_the_limit_is_the_moment_it_expires(age, expired):
    page = PageSnapshot(phase=Phase.STEPPING, heartbeat_ns=ago(age))
    assert bool(look(page, HEARTBEAT).expired) is expired


def test_what_lies_before_a_new_beginning_does_not_count():
    page = PageSnapshot(phase=Phase.STEPPING, heartbeat_ns=ago(12))
    assert look(page, HEARTBEAT, anew_ns=ago(9)) == Check((), ago(9) + 10 * S)
    (expired,) = look(page, HEARTBEAT, anew_ns=ago(11)).expired
    assert (expired.since_ns, expired.age_s, expired.deadline_ns) == (ago(12), 12, ago(1))


def test_nothing_came_after_initialisation():
    page = PageSnapshot(phase=Phase.INITIALIZED, initialized_ns=ago(50))
    (expired,) = look(page, HEARTBEAT).expired
    assert (expired.watch, expired.limit_s, expired.source) == ("initial heartbeat", 50, "default")


def test_a_rank_that_lives_by_sections_is_not_held_to_heartbeats():
    assert watches(with_sections({"a": None}), HEARTBEAT) == []


def test_one_that_uses_both_is_held_to_both():
    page = with_sections({"a": 30}, heartbeat_ns=ago(20))
    limits = Limits(heartbeat_s=10.0, sections={"a": 5.0})
    assert watches(page, limits) == [("section", "a"), ("heartbeat", "")]


@pytest.mark.parametrize("phase", [Phase.EMPTY, Phase.STARTING])
def test_a_rank_that_never_begins_is_expected_only_if_its_siblings_began(phase):
    page = PageSnapshot(phase=phase)
    assert watches(page, HEARTBEAT) == []
    (expired,) = look(page, HEARTBEAT, siblings_monitored=True).expired
    assert (expired.watch, expired.since_ns) == ("initial heartbeat", STARTED)


def test_what_a_starting_rank_left_in_its_page_does_not_count():
    page = replace(with_sections({"a": 999}, heartbeat_ns=1), phase=Phase.STARTING)
    assert watches(page, Limits(heartbeat_s=1.0, sections={"a": 1.0})) == []


# --- sections -------------------------------------------------------------------------------------


def test_nested_sections_do_not_mask_each_other():
    """Spec 3.1 item 2: ``outer`` hangs while ``inner``, opened later, has all the time."""
    page = with_sections({"outer": 2, "inner": 1})
    limits = Limits(sections={"outer": 1.0, "inner": 1000.0})
    assert watches(page, limits) == [("section", "outer")]


def test_the_limit_passed_first_comes_first():
    page = with_sections({"a": 10, "b": 10, "c": 10})
    limits = Limits(sections={"a": 5.0, "b": 2.0, "c": 9.0})
    assert watches(page, limits) == [("section", name) for name in "bac"]


def test_sections_without_limit_may_take_for_ever():
    page = with_sections({"a": 10**6, "b": 10**6})
    assert watches(page, Limits(sections={"b": None}, out_of_section_s=1.0)) == []


OUTSIDE = Limits(initial_heartbeat_s=None, heartbeat_s=None, out_of_section_s=10.0)


def test_time_outside_sections():
    page = with_sections({"a": None}, out_of_section_since_ns=ago(10))
    assert watches(page, OUTSIDE) == [("outside sections", "")]
    assert watches(replace(page, out_of_section_since_ns=None), OUTSIDE) == []


def test_time_outside_sections_counts_once_one_was_used():
    page = PageSnapshot(phase=Phase.INITIALIZED, initialized_ns=1)
    assert watches(page, OUTSIDE) == []


def test_time_before_the_first_step_is_not_outside_sections():
    """After `setup` a program may compile and load; as NVRx, where `warmup` has no limit."""
    outside = {"out_of_section_since_ns": ago(10)}
    limits = msgspec.structs.replace(OUTSIDE, sections={"setup": 5.0, "step": 5.0})
    assert watches(with_sections({"setup": None}, **outside), limits) == []
    late = [("outside sections", "")]
    assert watches(with_sections({"setup": None, "step": None}, **outside), limits) == late
    warm = msgspec.structs.replace(limits, warmup_s=5.0)
    assert watches(with_sections({"setup": None}, **outside), warm) == late
    others = msgspec.structs.replace(OUTSIDE, sections={"setup": 5.0})
    assert watches(with_sections({"setup": None}, **outside), others) == late


WARMUP = Limits(sections={"step": 10.0, "other": 10.0}, warmup_s=100.0, warmup_iterations=3)


@pytest.mark.parametrize(
    ("iteration", "given", "expired"),
    [(7, None, False), (9, None, False), (10, None, True), (9, 2, True), (10, 4, False),
     (7, 0, True)],
)  # fmt: skip
def test_warm_up_replaces_the_limit_of_step(iteration, given, expired):
    page = with_sections(
        {"step": 50}, iteration=iteration, first_iteration=7, warmup_iterations=given
    )
    assert bool(look(page, WARMUP).expired) is expired


def test_warm_up_ends_somewhere_too():
    page = with_sections({"step": 100, "other": 5}, iteration=7, first_iteration=7)
    limits = Limits(sections={"step": 10.0}, warmup_s=100.0, sources={"warmup": "--warm"})
    (expired,) = look(page, limits).expired
    assert (expired.name, expired.limit_s, expired.source) == ("step", 100.0, "--warm")


@pytest.mark.parametrize(("count", "expired"), [(0, False), (2, False), (3, True)])
def test_warm_up_of_a_rank_that_does_not_say_its_iteration(count, expired):
    section = SectionSnapshot("step", ago(50), count=count)
    page = replace(with_sections(), sections={"step": section})
    assert bool(look(page, WARMUP).expired) is expired


def test_warm_up_is_for_step_only():
    page = with_sections({"other": 50}, iteration=7, first_iteration=7)
    assert watches(page, WARMUP) == [("section", "other")]


# --- when nothing applies -------------------------------------------------------------------------

LATE = with_sections({"a": 10**5}, heartbeat_ns=1, out_of_section_since_ns=1)
STRICT = Limits(heartbeat_s=1.0, sections={"a": 1.0}, out_of_section_s=1.0)


@pytest.mark.parametrize(
    "page",
    [
        replace(LATE, phase=Phase.SHUT_DOWN),
        replace(LATE, phase=Phase.FAILED),
        replace(LATE, problem="garbage"),
    ],
)
def test_nothing_applies(page):
    assert look(LATE, STRICT).expired
    assert look(page, STRICT, siblings_monitored=True) == Check((), None)


def test_no_limits_no_looks():
    assert look(LATE, NONE) == Check((), None)


def test_an_infinite_limit_is_never_passed():
    page = PageSnapshot(phase=Phase.STEPPING, heartbeat_ns=1)
    assert look(page, Limits(heartbeat_s=float("inf"))).expired == ()


# --- pauses ---------------------------------------------------------------------------------------


def test_a_pause_of_the_agent_moves_deadlines():
    page = PageSnapshot(phase=Phase.STEPPING, heartbeat_ns=ago(15))
    result = look(page, HEARTBEAT, pauses=[(ago(1), 9 * S)])
    assert result.expired == ()
    assert result.next_ns == NOW + 4 * S


def test_a_pause_before_the_last_heartbeat_moves_nothing():
    page = PageSnapshot(phase=Phase.STEPPING, heartbeat_ns=ago(15))
    assert watches(page, HEARTBEAT, pauses=[(ago(20), 9 * S)]) == [("heartbeat", "")]


# --- when to look again ---------------------------------------------------------------------------


def test_next_look_is_the_next_deadline():
    page = PageSnapshot(phase=Phase.STEPPING, heartbeat_ns=ago(7))
    assert look(page, HEARTBEAT).next_ns == NOW + 3 * S


def test_next_look_is_soon_enough_for_what_may_begin_now():
    """A section opened right after this look is not looked at too late."""
    page = PageSnapshot(phase=Phase.STEPPING, heartbeat_ns=NOW)
    assert look(page, Limits(sections={"a": 0.5})).next_ns == NOW + S // 2


times = st.none() | st.integers(NOW - 20 * S, NOW)
limits = st.none() | st.floats(0.1, 15)
pages = st.builds(
    PageSnapshot,
    phase=st.sampled_from(Phase),
    heartbeat_ns=times,
    initialized_ns=times,
    out_of_section_since_ns=times,
    iteration=st.none() | st.integers(0, 9),
    first_iteration=st.none() | st.integers(0, 5),
    sections=st.dictionaries(st.sampled_from(["step", "a"]), times).map(
        lambda ages: {name: SectionSnapshot(name, since) for name, since in ages.items()}
    ),
)
all_limits = st.builds(
    Limits,
    initial_heartbeat_s=limits,
    heartbeat_s=limits,
    sections=st.dictionaries(st.sampled_from(["step", "a"]), limits),
    out_of_section_s=limits,
    warmup_s=limits,
)


@given(pages, all_limits, st.booleans())
def test_nothing_expires_before_the_next_look_and_nothing_is_forgotten(page, limits, siblings):
    """Of a rank that does nothing more, every limit is found at one of the looks."""
    result = look(page, limits, siblings_monitored=siblings)
    passed = {(e.watch, e.name) for e in result.expired}
    assert list(result.expired) == sorted(result.expired, key=lambda e: e.deadline_ns)
    assert all(e.since_ns <= e.deadline_ns <= NOW for e in result.expired)
    if result.next_ns is None:
        return
    assert result.next_ns > NOW
    just_before = watches(page, limits, now_ns=result.next_ns - 1, siblings_monitored=siblings)
    assert set(just_before) == passed
