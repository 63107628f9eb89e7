"""What the launcher says, for people and for programs."""

from __future__ import annotations

import json
import os

import pytest

from undaunted.fault_tolerance.output.lines import ERROR, INFO, TEXT, WARNING, LineFormat
from undaunted.fault_tolerance.output.messages import Messages
from undaunted.logs.stamps import STAMP


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
