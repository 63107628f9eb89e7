from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.base.text import (
    count,
    format_duration,
    format_ranks,
    name_ranks,
    one_line,
    printable,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.00004, "0 ms"),
        (0.00012, "0.1 ms"),
        (0.0042, "4.2 ms"),
        (0.00994, "9.9 ms"),
        (0.00996, "10 ms"),
        (0.34, "340 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (1.23, "1.2 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (245, "4 min 05 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (86_380, "1 d 00 h"),
        (3 * 86_400 + 4 * 3600, "3 d 04 h"),
        (-0.34, "-340 ms"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(0, 1e9))
def test_a_duration_never_reads_sixty_of_a_unit(seconds: float) -> None:
    text = format_duration(seconds)
    assert not any(bad in text for bad in ("1000 ms", "60.0 s", "60 s", "60 min", " 24 h"))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2, 3, 7], "0-3,7"), ([7, 5, 6, 5, 1], "1,5-7")],
)
def test_ranks(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks")])
def test_numbers_of_things(number, text):
    assert count(number, "rank") == text


@given(st.sets(st.integers(0, 300)))
def test_ranks_can_be_read_back(ranks: set[int]) -> None:
    parts = [part.split("-") for part in format_ranks(ranks).split(",") if part]
    assert {n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)} == ranks


def test_control_characters_are_written_out() -> None:
    assert printable("a\x1b[31mb\r\u202e\udcff") == "a\\x1b[31mb\\r\\u202e\\udcff"
    assert printable("caf\u00e9\n\tok") == "caf\u00e9\n\tok"


@given(st.text())
def test_one_line_is_one_short_line(text: str) -> None:
    line = one_line(text, longest=20)
    assert len(line) <= 20
    assert line.isprintable()


def test_one_line_says_when_it_is_cut() -> None:
    assert one_line("a  b\n c") == "a b c"
    assert one_line("x" * 30, longest=10) == "xxxxxxx..."


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "rank 3"), ([2, 0, 1, 7], "ranks 0-2,7"), ((0, 1), "ranks 0-1")]
)
def test_ranks_by_name(ranks: list[int], text: str) -> None:
    assert name_ranks(ranks) == text
