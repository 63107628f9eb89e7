"""Verdicts for a terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tests.chaos.results import result
from undaunted.chaos.checker.values import Defect
from undaunted.chaos.output import words
from undaunted.chaos.output.terminal import show
from undaunted.chaos.result import Result

if TYPE_CHECKING:
    import pytest


def shown(of: Result) -> str:
    file = io.StringIO()
    show(of, file)
    return file.getvalue()


def test_a_row_per_fault_and_a_paragraph_on_what_is_not_green(golden: Any) -> None:
    golden(Path(__file__).with_name("terminal.txt"), shown(result()))


def test_text_of_programs_cannot_act_on_the_terminal() -> None:
    whole = result()
    hostile = Defect("k", "red", "\x1b[2Jtext [red]not markup[/red] :smile:", "r\x07")
    verdicts = [msgspec.structs.replace(v, findings=(hostile,)) for v in whole.verdicts[:1]]

    text = shown(msgspec.structs.replace(whole, verdicts=verdicts, directory="d\x1b]0;x\x07"))

    assert "\\x1b[2Jtext [red]not markup[/red] :smile:" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_nothing_found_yet() -> None:
    assert shown(Result(interrupted=True)) == (
        "0 faults; interrupted before the end; seed 0, took 0 ms\n"
    )


def test_a_narrow_terminal_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    file = Terminal()

    show(result(), file)

    text = re.sub("\x1b\\[[0-9;]*m", "", file.getvalue())
    assert max(map(len, text.splitlines()[:20])) <= 60
    assert "no: rng" in text
    assert "spent on" not in text


def test_sizes() -> None:
    assert [words.size(count) for count in (0, 1, 5000, 3 << 29)] == [
        *("0 KiB", "1 KiB", "5 KiB", "1,536.0 MiB"),
    ]
