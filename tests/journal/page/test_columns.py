"""Tests of `undaunted.journal.page.columns`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from undaunted.journal.page.columns import (
    RankLists,
    Texts,
    differences,
    gapped_differences,
    ranges,
    to_ms,
)


def test_a_text_is_kept_once_and_made_one_printable_line():
    texts = Texts()
    assert [texts.place(one) for one in ("a\nb", "c\x1b", "a\nb")] == [0, 1, 0]
    assert texts.all == ["a b", "c\\x1b"]


def test_a_long_text_is_cut():
    texts = Texts()
    texts.place("x" * 10_000)
    assert len(texts.all[0]) == 500


def test_ranks_are_ranges_in_their_order():
    assert ranges([0, 1, 2, 7, 8, 3]) == [0, 3, 7, 2, 3, 1]
    assert ranges([]) == []


def test_the_same_ranks_are_kept_once():
    lists = RankLists()
    assert [lists.place(one) for one in ([0, 1], [2], [0, 1])] == [0, 1, 0]
    assert lists.all == [[0, 2], [2, 1]]


@given(st.lists(st.integers(-(2**40), 2**40)), st.integers(0, 2**40))
def test_differences_add_up(values, start):
    value, back = start, []
    for one in differences(values, start):
        value += one
        back.append(value)
    assert back == values


def test_what_is_missing_stays_missing():
    assert gapped_differences([5, None, 7], 3) == [2, None, 2]


def test_a_column_of_which_nothing_is_known_is_empty():
    assert gapped_differences([None, None], 3) == []


def test_milliseconds_are_rounded():
    assert [to_ms(one) for one in (0, 499_999, 500_000, 1_700_000)] == [0, 0, 1, 2]
