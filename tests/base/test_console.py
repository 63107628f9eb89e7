"""Styled lines, wrapped text and tables."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.base.console import (
    columns,
    cut,
    fill,
    labelled,
    plain,
    show,
    table,
    width_of,
    wrap,
)


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("step", 4, "step"),
        ("steps", 4, "ste~"),
        ("steps", None, "steps"),
        ("steps", 1, "~"),
        ("steps", 0, ""),
        ("\u6b65\u9aa4x", 5, "\u6b65\u9aa4x"),
        ("\u6b65\u9aa4x", 4, "\u6b65~"),
        ("e\u0301tape", 5, "e\u0301tape"),
    ],
)
def test_cut(text: str, width: int | None, expected: str) -> None:
    assert cut(text, width) == expected


def test_fill() -> None:
    assert fill("ab", 4) == "ab  "
    assert fill("ab", 4, right=True) == "  ab"
    assert fill("\u6b65", 4) == "\u6b65  "
    assert fill("long", 2) == "long"


@given(st.text(), st.integers(0, 20))
def test_never_wider(text: str, width: int) -> None:
    assert width_of(cut(text, width)) <= width


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


LINES = [[("red", "bold red"), (" and long " + "x" * 60, "")], [], [("[bold]:smile: 12", "")]]


def test_a_pipe_gets_text_alone() -> None:
    file = io.StringIO()
    show(LINES, file)
    assert file.getvalue() == f"red and long {'x' * 60}\n\n[bold]:smile: 12\n" == plain(LINES)
    assert columns(file) is None


def test_a_terminal_gets_colours_and_breaks_lines_itself(terminal: Terminal) -> None:
    show(LINES, terminal)
    text = f"\x1b[1;31mred\x1b[0m and long {'x' * 60}\n\n[bold]:smile: 12\n"
    assert terminal.getvalue() == text
    assert columns(terminal) == 40


def test_no_colour_where_none_is_wanted(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    show(LINES, terminal)
    assert "31m" not in terminal.getvalue()


def test_a_table() -> None:
    lines = table(("name", "size"), [("a[b]", ("10 B", "red")), ("longer", "9 B")], right=[1])
    assert plain(lines) == "name    size\na[b]    10 B\nlonger   9 B\n"
    assert ("10 B", "red") in lines[1]
    assert all(style == "dim" for _, style in lines[0])


def test_a_narrow_table_breaks_cells() -> None:
    lines = table(("name", "text"), [("one", "many words that are long")], width=20)
    assert max(len("".join(text for text, _ in line)) for line in lines) <= 20
    assert len(lines) > 2


def test_words_stay_whole() -> None:
    assert wrap("a " + "/path" * 10, 20) == ["a", "/path" * 10]
    assert wrap("a b", None) == ["a b"]
    assert plain(labelled("why: ", "one two three four five", 20)) == (
        "why: one two three four\n     five\n"
    )
    assert plain(labelled("why: ", "", 20)) == "why:\n"
