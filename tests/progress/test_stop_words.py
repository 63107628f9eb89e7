"""The words of a page by which ranks ask whether to stop, and the launcher answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.progress import layout
from undaunted.progress.layout import STOP_REASONS, WANTED, Wish, stop_of, stop_word, wish_of

ITERATIONS = st.integers(0, layout.LATEST)


@given(ITERATIONS, st.sampled_from(STOP_REASONS))
def test_an_answer_is_read_as_it_was_written(iteration: int, why: str) -> None:
    assert stop_of(stop_word(iteration, why)) == (iteration, why)


@given(st.none() | st.integers(0, 10**6), st.sampled_from(WANTED))
def test_a_wish_is_read_as_it_was_written(rank: int | None, why: str) -> None:
    assert wish_of(layout.wish_word(why, rank)) == Wish(why, rank)


@given(st.integers(0, 2**63 - 1))
def test_any_word_is_read(word: int) -> None:
    known, wish = stop_of(word), wish_of(word)
    assert known is None or known[1] in STOP_REASONS
    assert wish is None or wish.why in WANTED


def test_the_last_iteration_that_a_rank_has_asked_about(area, writer):
    assert area.asked() == [None, None]
    assert not writer.asks
    writer.will_ask()
    assert area.asked() == [-1, None]
    assert writer.asks
    for iteration in (0, 7):
        assert writer.asked(iteration) == 0
        assert area.asked() == [iteration, None]
    assert (area.asks(0), area.asks(1)) == (True, False)


@pytest.mark.parametrize("iteration", [None, 0, 7])
def test_a_rank_that_asks_no_more_has_asked_before(area, writer, iteration):
    writer.will_ask()
    if iteration is not None:
        writer.asked(iteration)
    writer.want_stop("preempted")
    writer.asks_no_more()
    writer.asks_no_more()
    assert area.asked()[0] == (-1 if iteration is None else iteration)
    assert (writer.asks, area.asks(0), area.snapshot(0).wish) == (False, False, None)


def test_a_rank_that_stops_alone_keeps_its_reason(area, writer):
    writer.asked(3)
    writer.want_stop("suspect", rank=5)
    writer.stops_alone()
    writer.asks_no_more()
    assert area.asked()[0] == layout.STOPPED_ALONE
    assert not area.asks(0)
    assert area.snapshot(0).wish == Wish("suspect", 5)


def test_ranks_wait_for_the_answer_and_keep_it(area, writer):
    assert area.stops_after(0) is None
    area.have_wait()
    assert stop_of(writer.asked(4)) is None
    assert writer.stop_word
    area.stop_after(9, "restart")
    area.have_wait()
    assert stop_of(writer.asked(5)) == (9, "restart")
    assert (area.stops_after(0), area.stops_after(1)) == (9, 9)
