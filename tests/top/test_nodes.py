"""What is known of a node after each part of its journal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.journal import sample
from tests.journal.sample import at
from tests.top.pages import SECOND, look, stepping
from undaunted.journal import events as e
from undaunted.top.nodes import Node


def after(*events: e.Event) -> Node:
    node = Node()
    for event in events:
        node.take(event)
    return node


def part(found: tuple[float, int] | None) -> float:
    assert found is not None
    return found[0] / found[1]


def test_the_end() -> None:
    node = after(*sample.RUN)
    assert node.launch.ended is not None
    assert node.notes()[-1].text == "finished: every rank exited with 0"
    assert node.notes()[-1].style == "green"


def test_goodput_is_that_of_the_report() -> None:
    assert round(part(after(*sample.RUN).productive(0, None)), 4) == 0.4504


def test_goodput_is_not_known_where_rounds_were_forgotten() -> None:
    node = after(*sample.RUN)
    node.launch.complete = False
    assert node.productive(0, None) is None


def test_what_pages_say_counts_while_the_round_runs() -> None:
    begin = [*sample.OPENING, *sample.begin(10, 0)]
    assert part(after(*begin).productive(0, [])) < 0.05
    pages = [look(stepping(107, 10 * SECOND, first_iteration=7))]
    found = after(*begin).productive(10 * SECOND, pages)
    assert part(found) > 0.99
    assert found is not None
    assert found[1] == 2 * (10 * SECOND - 1_000_000)  # of two ranks


def test_time_goes_on_between_rounds() -> None:
    node = after(*sample.OPENING, *sample.begin(10, 0), *sample.CRASH)
    found = node.productive(5 * SECOND, [look(stepping(27, SECOND, first_iteration=7))])
    assert found is not None
    assert found[1] == 2 * (5 * SECOND - 1_000_000)


def test_it_is_counted_anew_with_each_event_and_every_few_seconds() -> None:
    node = after(*sample.OPENING, *sample.begin(10, 0))
    before = node.productive(SECOND, [])
    assert node.productive(2 * SECOND, []) == before
    assert node.productive(7 * SECOND, []) != before
    node.take(at(7500, e.AgentPaused, seconds=0.0))
    assert part(node.productive(8 * SECOND, [])) > part(node.productive(8 * SECOND, [])) - 1e-9


def test_a_new_launch_forgets_the_one_before() -> None:
    again = at(10_000, e.JournalOpened, boot_id="boot", pid=43)
    node = after(*sample.RUN, again)
    launch = node.launch
    assert (launch.job, launch.ended, launch.number, node.notes()) == (None, None, -1, [])


def test_the_same_writer_may_open_its_file_again() -> None:
    launch = after(*sample.OPENING, *sample.begin(10, 0), sample.OPENING[0]).launch
    assert (launch.number, launch.current.stage) == (0, "running")


def test_a_journal_read_twice_tells_the_same() -> None:
    launch = after(*sample.RUN, *sample.RUN).launch
    assert [launch.failures_of(rank) for rank in (0, 1)] == [1, 1]
    assert launch.opened == sample.OPENING[0]


def test_notes_of_restarts_inside_of_processes() -> None:
    begin = [*sample.OPENING, *sample.begin(10, 0)]
    detect = at(40, e.InProcessPhase, 0, call=0, epoch=1, phase="detect", reasons=["rank 1: oh"])
    again = at(50, e.InProcessPhase, 0, call=0, epoch=1, phase="re-enter", took_s=0.01, lost=[1])
    assert [note.text for note in after(*begin, detect, again).notes()] == [
        "in-process restart 1: rank 1: oh",
        "in-process restart 1: running again after 10 ms, without rank 1",
    ]


@given(st.lists(st.sampled_from(sample.RUN), max_size=30))
def test_events_in_any_order_are_taken(events: list[e.AnyEvent]) -> None:
    after(*events).productive(10**12, [])
