"""What the launcher says, for people and for programs."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import termios
from typing import TYPE_CHECKING

import pytest

from undaunted.fault_tolerance.output.lines import (
    DONE,
    ERROR,
    INFO,
    PROGRESS,
    TEXT,
    WARNING,
    LineFormat,
)
from undaunted.fault_tolerance.output.messages import Messages
from undaunted.fault_tolerance.output.stamps import STAMP

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_people_get_a_prefix_and_nothing_that_is_not_printable() -> None:
    assert TEXT.line("so\nit is \x1b[31m") == "[undaunted] so\nit is \\x1b[31m\n"
    assert TEXT.line("so", prefix=False, level=ERROR, rank=3) == "so\n"


@pytest.mark.parametrize(
    ("level", "name"), [(INFO, "info"), (WARNING, "warning"), (ERROR, "error")]
)
def test_programs_get_an_object_per_line(level: int, name: str) -> None:
    text = 'two\nlines, "quoted" \x1b[31m \udcff'
    line = LineFormat("json", "n1").line(text.replace("\udcff", ""), level=level, rank=3)
    assert line.count("\n") == 1
    told = json.loads(line)
    assert list(told) == ["time", "level", "node", "rank", "text"]
    assert (told["level"], told["node"], told["rank"]) == (name, "n1", 3)
    assert told["text"] == 'two\nlines, "quoted" \x1b[31m '
    assert STAMP.match(f"{told['time']} ".encode())
    assert json.loads(LineFormat("json").line("x"))["rank"] is None


def test_text_that_is_no_unicode_is_told_all_the_same() -> None:
    assert json.loads(LineFormat("json").line("a \udcff path"))["text"] == "a ? path"


def test_all_that_is_said_has_the_format() -> None:
    read, write = os.pipe()
    messages = Messages(fd=write, form=LineFormat("json", "n1"))
    messages.say("one", rank=0)
    messages.say("Traceback\n  x", level=ERROR, prefix=False)
    messages._show_problem("the log cannot be written")
    messages.close(10)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as told:
        lines = [json.loads(line) for line in told]
    assert [each["text"] for each in lines] == [
        "one", "Traceback\n  x", "the log cannot be written",
    ]  # fmt: skip
    assert [each["rank"] for each in lines] == [0, None, None]


def test_a_line_is_shown_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    LineFormat("json", "n1").show("so", level=ERROR)
    assert json.loads(capsys.readouterr().err)["level"] == "error"


LONG = "rank 2 (node n1) hangs: no heartbeat for 3.0 s; " + "; ".join(["a detail of it"] * 20)


def resize(fd: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    ends = os.openpty()
    resize(ends[1], 200)
    yield ends
    for fd in ends:
        os.close(fd)


def test_long_lines_are_folded_on_a_terminal(terminal: tuple[int, int]) -> None:
    form = LineFormat().on(terminal[1])._replace(colour=False)
    lines = form.line(LONG, level=ERROR).splitlines()
    assert max(map(len, lines)) <= 120
    assert lines[0] == "[undaunted] rank 2 (node n1) hangs: no heartbeat for 3.0 s;"
    assert lines[1:] == ["    a detail of it;"] * 19 + ["    a detail of it"]
    words = form.line("x" * 130 + " " + "y " * 200).split()
    assert words == ["[undaunted]", "x" * 130, *["y"] * 200]
    resize(terminal[1], 40)
    narrow = LineFormat().on(terminal[1])._replace(colour=False).line(LONG).splitlines()
    assert max(map(len, narrow)) <= 40
    assert "".join(narrow).count("a detail of it") == 20
    traceback = "Traceback:\n" + "z" * 500
    assert form.line(traceback, prefix=False) == traceback + "\n"


def test_levels_have_colours_on_a_terminal(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    form = LineFormat().on(terminal[1])
    shown = {level: form.line("so", level=level) for level in (INFO, PROGRESS, DONE, ERROR)}
    assert shown[INFO] == "[undaunted] so\n"
    assert len(set(shown.values())) == 4
    assert all(line.startswith("\x1b[") for level, line in shown.items() if level != INFO)
    assert "\x1b" not in form.line("so \x1b[31m", level=INFO)
    monkeypatch.setenv("NO_COLOR", "1")
    assert LineFormat().on(terminal[1]).line("so", level=ERROR) == shown[INFO]


@pytest.mark.parametrize("name", ["plain", "json"])
def test_another_format_is_the_same_on_a_terminal(terminal: tuple[int, int], name: str) -> None:
    form = LineFormat(name)
    assert form.on(terminal[1]) == form


def test_files_and_dumb_terminals_get_whole_lines(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    assert LineFormat().on(write).line(LONG) == f"[undaunted] {LONG}\n"
    os.close(read)
    os.close(write)
    monkeypatch.setenv("TERM", "dumb")
    assert LineFormat().on(terminal[1]).line(LONG) == f"[undaunted] {LONG}\n"
