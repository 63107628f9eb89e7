"""Tests of `undaunted.journal.page.markup`."""

from __future__ import annotations

import pytest

from tests.journal.page.jobs import HOSTILE
from undaunted.journal.page.markup import Cell, elapsed, folded, lines, number, table, text, took

S = 1_000_000_000


def test_text_cannot_become_markup():
    said = text(HOSTILE)
    assert not set("<>\x1b\x00\u2028\u202e\ud800") & set(said)
    assert said.startswith("&lt;/script&gt;")


def test_of_a_long_text_of_several_lines_the_end_is_kept():
    assert lines("a\n<b>\nlast", 8) == "...<b>\nlast".replace("<", "&lt;").replace(">", "&gt;")


def test_what_is_not_known_is_a_dash():
    assert number(None).markup == took(None).markup == "\N{EN DASH}"
    assert took(2 * S) == Cell("2.0 s", "number")


@pytest.mark.parametrize(
    ("ns", "said"),
    [
        (0, "00:00.000"),
        (61 * S + 5_000_000, "01:01.005"),
        (3661 * S, "1:01:01"),
        (25 * 3600 * S, "1 d 1:00:00"),
    ],
)
def test_moments_are_written_as_on_the_axis(ns, said):
    assert elapsed(ns) == said


def test_a_table_can_be_reached_by_keyboard_and_is_named():
    made = table(["a", "b"], [[Cell("x"), number(1)]], "Label")
    assert 'tabindex="0" aria-label="Label"' in made
    assert '<th scope="col">a</th><th scope="col" class=number>b</th>' in made
    assert '<tr><td>x</td><td class="number">1</td></tr>' in made


def test_an_empty_table_has_heads():
    assert '<th scope="col">a</th>' in table(["a"], [], "Label")


def test_a_folded_part_has_a_title():
    assert folded("more", "<p>x</p>").startswith('<details class="part"><summary>more</summary>')
