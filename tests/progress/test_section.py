from __future__ import annotations

import threading

import pytest

from undaunted.progress import layout
from undaunted.progress.limits import Limits
from undaunted.progress.snapshot import Phase


def test_a_section(area, writer, clock):
    clock(1000)
    with writer.section("load"):
        clock(5000)
        page = area.snapshot(0)
        assert page.sections["load"].open_since_ns == 1000
        assert page.out_of_section_since_ns is None
    page = area.snapshot(0)
    section = page.sections["load"]
    assert (section.open_since_ns, section.count) == (None, 1)
    assert section.last_ns == section.max_ns == 4000
    assert page.out_of_section_since_ns == 5000
    assert page.phase is Phase.INITIALIZED
    with writer.section("load"):
        clock(7000)
    assert area.snapshot(0).sections["load"].total_ns == 6000


def test_sections_nest_and_overlap(area, writer):
    """Spec 3.1 item 2: each open section has a time of its own, whatever is opened after it."""
    writer.open_section("outer")
    writer.open_section("inner")
    page = area.snapshot(0)
    assert page.sections["outer"].open_since_ns <= page.sections["inner"].open_since_ns
    writer.close_section("outer")
    page = area.snapshot(0)
    assert page.sections["outer"].open_since_ns is None
    assert page.sections["inner"].open_since_ns is not None
    assert page.out_of_section_since_ns is None
    writer.close_section("inner")
    assert area.snapshot(0).out_of_section_since_ns is not None


def test_a_section_entered_again_is_open_until_left_as_often(area, writer, clock):
    clock(1000)
    writer.open_section("a")
    clock(2000)
    writer.open_section("a")
    assert area.snapshot(0).sections["a"].open_since_ns == 2000
    clock(3000)
    writer.close_section("a")
    assert area.snapshot(0).sections["a"].open_since_ns == 3000
    writer.close_section("a")
    section = area.snapshot(0).sections["a"]
    assert (section.open_since_ns, section.count, section.max_ns) == (None, 2, 2000)


def test_close_all(area, writer):
    """Spec 3.1 item 3."""
    for name in ("a", "b", "a"):
        writer.open_section(name)
    writer.close_all()
    page = area.snapshot(0)
    assert all(section.open_since_ns is None for section in page.sections.values())
    assert page.out_of_section_since_ns is not None


def test_closing_what_is_not_open_does_nothing(area, writer):
    writer.close_section("never opened")
    writer.close_all()
    assert area.snapshot(0).out_of_section_since_ns is None


def test_a_section_left_by_an_exception_is_closed(area, writer):
    with pytest.raises(KeyError), writer.section("a"):
        raise KeyError
    assert area.snapshot(0).sections["a"].open_since_ns is None


def test_a_full_table_watches_the_rest_as_one(area, writer):
    own = layout.SECTION_SLOTS - 1
    for index in range(own + 3):
        with writer.section(f"s{index}"):
            assert area.snapshot(0).out_of_section_since_ns is None
    page = area.snapshot(0)
    assert set(page.sections) == {*(f"s{i}" for i in range(own)), layout.OTHERS}
    assert page.sections[layout.OTHERS].count == 3
    with writer.section("s0"):
        pass
    assert area.snapshot(0).sections["s0"].count == 2


@pytest.mark.parametrize("name", ["", "x" * 65, "\u00e9" * 33])
def test_names_that_do_not_fit(area, writer, name):
    with writer.section(name):
        pass
    page = area.snapshot(0)
    assert set(page.sections) == {layout.OTHERS}


def test_a_name_of_any_characters(area, writer):
    with writer.section("\u00e9" * 32), writer.section("\udc80"):
        pass
    assert set(area.snapshot(0).sections) == {"\u00e9" * 32, "?"}


def test_threads_that_overlap(area, writer):
    """Counts may miss some, but nothing raises and nothing stays open."""
    failures = []
    together = threading.Barrier(4)

    def work():
        try:
            together.wait(20)
            for index in range(300):
                with writer.section("shared"), writer.section(f"s{index % 40}"):
                    writer.heartbeat()
                    writer.event("e")
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    page = area.snapshot(0)
    assert not failures
    assert not page.problem
    assert all(section.open_since_ns is None for section in page.sections.values())
    events, lost = area.drain_events(0)
    assert len(events) + lost >= 1200 - 4


def test_garbage_in_the_page_does_not_disturb_the_rank(area, writer):
    with writer.section("a"):
        area._bytes[0][:] = b"\xff" * layout.PAGE_BYTES
        writer.heartbeat()
        writer.step(3)
    with writer.section("new"), writer.section("x" * 80):
        writer.heartbeat()
    writer.event("e", "text")
    writer.record_error(ValueError())
    writer.milestone("first_line")
    with pytest.raises(TimeoutError):
        writer.request(b"ask", 0)
    writer.shut_down()
    writer.initialize()


@pytest.mark.parametrize("name", [None, 3, b"step"])
def test_a_name_is_text(writer, name):
    """The script is wrong, which it should be told at its first use."""
    with pytest.raises(TypeError, match=r"the name of a section is .*, not text"):
        writer.section(name)


def test_times_outside_sections_are_counted(area, writer, clock):
    for now, action in (
        (1_000, writer.open_section),
        (2_000, writer.close_section),  # 5000 outside
        (7_000, writer.open_section),
        (8_000, writer.close_section),  # 90,000 outside
        (98_000, writer.open_section),
    ):
        clock(now)
        action("a")
    page = area.snapshot(0)
    assert (page.outside_count, page.outside_max_ns) == (2, 90_000)


def test_the_longest_of_the_warm_up_is_kept_apart(area, writer, clock):
    writer.initialize(warmup_iterations=2)
    for at, lasts in enumerate((900, 800, 300, 500, 400)):
        clock(10_000 * at + 1)
        writer.heartbeat()
        with writer.section("a"):
            clock(10_000 * at + 1 + lasts)
    page = area.snapshot(0)
    assert (page.sections["a"].max_ns, page.sections["a"].warm_max_ns) == (900, 500)
    assert (page.outside_max_ns, page.outside_warm_max_ns) == (9_700, 9_700)
    assert (page.heartbeat_max_ns, page.heartbeat_warm_max_ns) == (10_000, 10_000)


def test_the_launcher_says_how_much_is_warm_up(area, writer, clock):
    for warmup, longest_ns in ((2, 500), (5, 0)):
        area.set_limits(Limits(warmup_iterations=warmup))
        section = writer.section(f"of {warmup}")
        for lasts in (900, 800, 300, 500, 400):
            clock(1)
            with section:
                clock(1 + lasts)
        found = area.snapshot(0).sections[section.name]
        assert (found.max_ns, found.warm_max_ns) == (900, longest_ns)


def test_time_with_any_section_open_is_not_outside(area, writer):
    writer.open_section("a")
    writer.open_section("b")
    writer.close_section("a")
    writer.open_section("a")
    assert area.snapshot(0).outside_count == 0
    writer.close_all()
    writer.open_section("a")
    assert area.snapshot(0).outside_count == 1


def test_time_between_two_initialisations_is_not_outside(area, writer):
    writer.open_section("a")
    writer.shut_down()
    writer.initialize()
    writer.open_section("a")
    assert area.snapshot(0).outside_count == 0


# --- the longest of everything --------------------------------------------------------------------

S = 1_000_000_000


def test_maxima_of_heartbeats_begin_with_monitoring(writer, clock):
    clock(100 * S)
    writer.initialize()
    assert writer.maxima().initial_ns == 0
    for moment in (103, 104, 109, 110):
        clock(moment * S)
        writer.heartbeat()
    seen = writer.maxima()
    assert (seen.initial_ns, seen.subsequent_ns) == (3 * S, 5 * S)


def test_maxima_of_sections_and_of_the_time_outside(writer, clock):
    clock(100 * S)
    writer.initialize()
    clock(102 * S)
    assert writer.maxima().out_of_section_ns == 2 * S
    writer.open_section("a")
    clock(103 * S)
    writer.open_section("b")
    clock(110 * S)
    writer.close_section("a")
    clock(111 * S)
    writer.close_section("b")
    clock(112 * S)
    seen = writer.maxima()
    assert seen.sections_ns == {"a": 8 * S, "b": 8 * S}
    assert seen.out_of_section_ns == 2 * S, "before the first one"
    clock(120 * S)
    assert writer.maxima().out_of_section_ns == 9 * S, "what lasts until now counts"
    writer.open_section("a")
    clock(150 * S)
    assert writer.maxima().out_of_section_ns == 9 * S
    assert writer.maxima().sections_ns["a"] == 8 * S, "an open section has not shown its length"
