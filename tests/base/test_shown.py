"""Progress of long reading and writing: for people in front of terminals only."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from undaunted.base import shown
from undaunted.base.shown import Shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Use = Callable[..., str]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Does something that takes a while; returns what standard error got."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")

    def use(stream: io.StringIO, rank: int = 0, silent_s: float = 0.0) -> str:
        monkeypatch.setattr(shown, "_SILENT_S", silent_s)
        monkeypatch.setattr("sys.stderr", stream)
        with Shown("loading step 7", rank) as line:
            line.expect(4 << 20)
            line.advance(1 << 20)
            line.advance(2 << 20)
        before = stream.getvalue()
        line.advance(1 << 20)
        assert stream.getvalue() == before
        return before

    return use


def test_a_terminal_shows_how_far_it_is(use: Use) -> None:
    text = use(Terminal())
    assert "loading step 7" in text
    assert "3.0/4.0 MiB" in text


def test_other_ranks_are_silent(use: Use) -> None:
    assert use(Terminal(), rank=1) == ""


def test_what_is_short_is_not_shown(use: Use) -> None:
    assert use(Terminal(), silent_s=1000.0) == ""


def test_files_and_pipes_get_nothing(use: Use) -> None:
    assert use(io.StringIO()) == ""


def test_a_program_without_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    with Shown("loading", 0) as line:
        line.advance(1)
