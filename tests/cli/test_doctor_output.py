from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any

from undaunted.cli.doctor_output import show

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def lines(*, width: int | None = None) -> list[list[tuple[str, str]]]:
    return [[("FAIL  ", "bold red"), (f"{width} \u2713 ", "")]]


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    show(None, lines, as_json=False)
    assert capsys.readouterr().out == "FAIL  None \u2713\n"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    show({"a": 1}, lines, as_json=True)
    assert capsys.readouterr().out == '{\n  "a": 1\n}\n'


def test_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    show(None, lines, as_json=False)
    assert "\x1b[1;31mFAIL  \x1b[0m77 \u2713" in terminal.getvalue()


def test_any_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        show(None, lines, as_json=False)
    assert (tmp_path / "out").read_text() == "FAIL  None \\u2713\n"


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, os.strerror(28))

    full: Any = Full()
    monkeypatch.setattr(sys, "stdout", full)
    show(None, lines, as_json=False)
    assert "standard output: No space left on device" in capsys.readouterr().err
