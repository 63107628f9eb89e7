"""The launcher's own lines: in order, bounded, and never waited for; in its log as well."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import re
import struct
import termios
import threading
import tty
from typing import TYPE_CHECKING

import pytest

from undaunted.fault_tolerance.output import log_file
from undaunted.fault_tolerance.output import messages as module
from undaunted.fault_tolerance.output.lines import ERROR, INFO, WARNING
from undaunted.fault_tolerance.output.messages import (
    LauncherLog,
    Messages,
    append_last_words,
    to_line_begin,
)

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 60.0
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z node7 "


def test_lines_arrive_in_order_with_their_prefix() -> None:
    read, write = os.pipe()
    try:
        messages = Messages(fd=write)
        messages.say("one")
        messages.say("Traceback\n  File", prefix=False)
        messages.close()
        assert os.read(read, 1000) == b"[undaunted] one\nTraceback\n  File\n"
    finally:
        os.close(read)
        os.close(write)


def said_after(fd: int, *, shared: bool) -> None:
    """Two lines, the first of them after a rank of a round that is over has written."""
    messages = Messages(fd=fd)
    messages.share(shared)
    messages.share(False)
    messages.say("one")
    messages.say("two")
    messages.close()


@pytest.mark.parametrize("shared", [True, False])
def test_in_a_pipe_no_line_goes_on_where_a_rank_has_stopped(*, shared: bool) -> None:
    read, write = os.pipe()
    try:
        os.write(write, b"50 %")
        said_after(write, shared=shared)
        begin = b"50 %\n" if shared else b"50 %"
        assert os.read(read, 1000) == begin + b"[undaunted] one\n[undaunted] two\n"
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize(
    ("before", "after"), [(b"", b""), (b"50 %", b"50 %\n"), (b"100 %\n", b"100 %\n")]
)
def test_in_a_file_only_an_unfinished_line_is_ended(
    tmp_path: Path, before: bytes, after: bytes
) -> None:
    path = tmp_path / "log"
    path.write_bytes(before)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        said_after(fd, shared=True)
    finally:
        os.close(fd)
    assert path.read_bytes() == after + b"[undaunted] one\n[undaunted] two\n"


def test_what_a_terminal_would_act_on_is_written_out() -> None:
    read, write = os.pipe()
    try:
        messages = Messages(fd=write)
        messages.say("a\x1b[31m\r\nb")
        messages.close()
        assert os.read(read, 1000) == b"[undaunted] a\\x1b[31m\\r\nb\n"
    finally:
        os.close(read)
        os.close(write)


def test_lines_below_the_level_are_left_out() -> None:
    read, write = os.pipe()
    try:
        messages = Messages(WARNING, write)
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
        messages = Messages(fd=write)
        messages.write_to(str(tmp_path / "log"), "node7")
        messages.say("one")
        messages.say("news", level=10)
        messages.close()
        assert (tmp_path / "log").read_text().endswith("Z node7 [undaunted] one\n")
        messages = Messages(fd=write)
        messages.write_to(str(tmp_path / "log" / "no directory"), "node7")
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
        messages = Messages(fd=write)
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
        messages = Messages(fd=write)
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
        messages = Closing(fd=write)
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
        messages = Messages(fd=terminal)
        messages.say("one", level=INFO)
        messages.close()
        said = os.read(controller, 1000).decode()
        assert screen(before + said, 20) == shown
        monkeypatch.setenv("TERM", "dumb")
        assert to_line_begin(terminal) == b""
    finally:
        os.close(controller)
        os.close(terminal)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "_RETRY_S", 0.01)


class Disk:
    """Stands between the log and the disk, which may be full, or hang until it is released."""

    def __init__(self, monkeypatch):
        self.full = threading.Event()
        self.refused = threading.Event()
        self.hangs = False
        self.released = threading.Event()
        self._writev = os.writev
        monkeypatch.setattr(log_file.os, "writev", self.write)

    def write(self, fd, pieces):
        if self.hangs:
            self.refused.set()
            self.released.wait(DEADLINE_S)
        if self.full.is_set():
            self.refused.set()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._writev(fd, pieces)


def test_texts_arrive_in_order_with_time_and_node(tmp_path):
    path = tmp_path / "new" / "launcher.log"
    problems = []
    log = LauncherLog(str(path), "node7", problems.append)
    log.add("[undaunted] one\n")
    log.add("Traceback\n  File\n")
    log.close(DEADLINE_S)
    expected = STAMP + r"\[undaunted\] one\n" + STAMP + r"Traceback\n  File\n"
    assert re.fullmatch(expected, path.read_text())
    assert path.stat().st_mode & 0o777 == 0o600
    assert problems == []


def test_launchers_of_several_nodes_append_to_one_file(tmp_path):
    path = tmp_path / "launcher.log"
    for node in ("node7", "node7"):
        log = LauncherLog(str(path), node, print)
        log.add("line\n")
        log.close(DEADLINE_S)
    assert re.fullmatch(f"({STAMP}line\n){{2}}", path.read_text())


def test_a_full_disk_is_tried_again_and_said_once(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    disk.full.set()
    problems = []
    log = LauncherLog(str(tmp_path / "log"), "node7", problems.append)
    log.add("first\n")
    assert disk.refused.wait(DEADLINE_S)
    for number in range(module._QUEUED_TEXTS + 5):
        log.add(f"{number}\n")
    disk.full.clear()
    log.close(DEADLINE_S)
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0].endswith(" first")
    assert lines[-2].endswith(f" {module._QUEUED_TEXTS - 1}")
    assert lines[-1].endswith(" [undaunted] 5 lines are missing here")
    assert len(problems) == 1
    assert "No space left on device; its lines are here" in problems[0]


def test_a_disk_that_stays_full_ends_the_thread(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    disk.full.set()
    log = LauncherLog(str(tmp_path / "log"), "node7", lambda _: None)
    log.add("first\n")
    log.add("second\n")
    log.close(DEADLINE_S)
    assert not log._thread.is_alive()
    assert (tmp_path / "log").read_text() == ""


def test_a_disk_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    disk.hangs = True
    log = LauncherLog(str(tmp_path / "log"), "node7", lambda _: None)
    log.add("first\n")
    assert disk.refused.wait(DEADLINE_S)
    for number in range(2 * module._QUEUED_TEXTS):
        log.add(f"{number}\n")
    log.close(0.01)
    disk.hangs = False
    disk.released.set()
    log._thread.join(DEADLINE_S)
    assert not log._thread.is_alive()


def test_a_file_that_cannot_be_opened_is_said(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "somewhere")
    problems = []
    log = LauncherLog(str(tmp_path / "link"), "node7", problems.append)
    log.add("line\n")
    log.close(DEADLINE_S)
    assert len(problems) == 1
    assert str(tmp_path / "link") in problems[0]
    assert not (tmp_path / "somewhere").exists()


def test_last_words(tmp_path):
    append_last_words(str(tmp_path / "log"), "node7", "gone\n")
    append_last_words(str(tmp_path / "log" / "no directory"), "node7", "gone\n")
    append_last_words("", "node7", "gone\n")
    assert re.fullmatch(STAMP + "gone\n", (tmp_path / "log").read_text())
