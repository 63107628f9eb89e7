"""The launcher's own lines: in order, bounded, and never waited for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import termios
import tty

import pytest

from undaunted.fault_tolerance.agent.telling.messages import (
    ERROR,
    INFO,
    WARNING,
    Messages,
    to_line_begin,
)


def test_lines_arrive_in_order_with_their_prefix() -> None:
    read, write = os.pipe()
    try:
        messages = Messages(write)
        messages.say("one")
        messages.say("Traceback\n  File", prefix=False)
        messages.close()
        assert os.read(read, 1000) == b"[undaunted] one\nTraceback\n  File\n"
    finally:
        os.close(read)
        os.close(write)


def test_lines_below_the_level_are_left_out() -> None:
    read, write = os.pipe()
    try:
        messages = Messages(write, level=WARNING)
        messages.say("news", level=INFO)
        messages.say("problem")
        messages.say("failure", level=ERROR)
        messages.close()
        assert os.read(read, 1000) == b"[undaunted] problem\n[undaunted] failure\n"
    finally:
        os.close(read)
        os.close(write)


def test_lines_go_to_a_file_as_well_and_its_problems_to_the_console(tmp_path) -> None:
    read, write = os.pipe()
    try:
        messages = Messages(write, log=str(tmp_path / "log"), node="node7")
        messages.say("one")
        messages.say("news", level=10)
        messages.close()
        assert (tmp_path / "log").read_text().endswith("Z node7 [undaunted] one\n")
        messages = Messages(write, log=str(tmp_path / "log" / "no directory"), node="node7")
        messages.close()
        first, second = os.read(read, 1000).decode().splitlines()
        assert first == "[undaunted] one"
        assert second.startswith(f"[undaunted] the launcher's log {tmp_path}/log/no directory")
    finally:
        os.close(read)
        os.close(write)


def test_nobody_reads_any_more() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        messages = Messages(write)
        messages.say("into the void")
        messages.close()
    finally:
        os.close(write)


@pytest.mark.leaves("threads")
def test_a_full_pipe_stops_nobody() -> None:
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write, bytes(65536))
        messages = Messages(write)
        for number in range(5000):
            messages.say(f"line {number}")
        messages.close(timeout_s=0.05)
    finally:
        os.close(read)  # the waiting thread sees that nobody will read, and ends
        messages._lines.put(None, timeout=10)
        messages._thread.join(10)
        os.close(write)


def test_a_line_said_while_the_file_is_closed_by_another_thread() -> None:
    class Closing(Messages):
        """Between any two looks at it, the file is closed."""

        looks = 0

        @property
        def _log(self):  # type: ignore[override]
            self.looks += 1
            return self if self.looks == 1 else None

        @_log.setter
        def _log(self, log):
            pass

        def add(self, text):
            added.append(text)

    added: list[str] = []
    read, write = os.pipe()
    try:
        messages = Closing(write)
        messages.say("one")
        assert added == ["[undaunted] one\n"]
        messages.close()
    finally:
        os.close(read)
        os.close(write)


def screen(text: str, columns: int) -> list[str]:
    """What a terminal shows; like real ones, it wraps a full line when the next character comes."""
    rows, row, column = [[" "] * columns], 0, 0
    for char in text.replace("\x1b[K", "\x00"):
        if char == "\r":
            column = 0
        elif char == "\x00":
            rows[row][column:] = [" "] * (columns - column)
        else:
            if char == "\n" or column == columns:
                row, column = row + 1, 0
                rows.append([" "] * columns)
            if char != "\n":
                rows[row][column] = char
                column += 1
    return ["".join(line).rstrip() for line in rows]


@pytest.mark.parametrize(
    ("before", "shown"),
    [
        ("", ["[undaunted] one", ""]),
        ("loaded\n", ["loaded", "[undaunted] one", ""]),
        ("\r5", ["5", "[undaunted] one", ""]),
        ("\r 50 %|#####", [" 50 %|#####", "[undaunted] one", ""]),
        ("x" * 20, ["x" * 20, "[undaunted] one", ""]),
    ],
)
def test_on_a_terminal_a_line_begins_where_a_line_begins(before, shown, monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    controller, terminal = pty.openpty()
    try:
        tty.setraw(terminal)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
        messages = Messages(terminal)
        messages.say("one")
        messages.close()
        said = os.read(controller, 1000).decode()
        assert screen(before + said, 20) == shown
        monkeypatch.setenv("TERM", "dumb")
        assert to_line_begin(terminal) == b""
    finally:
        os.close(controller)
        os.close(terminal)
