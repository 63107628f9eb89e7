"""A terminal, taken over and given back."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from typing import TYPE_CHECKING

import pytest

from undaunted.top.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    outer, inner = pty.openpty()
    yield outer, inner
    for fd in (outer, inner):
        os.close(fd)


def test_the_terminal_is_given_back_as_it_was(ends: tuple[int, int]) -> None:
    outer, inner = ends
    before = termios.tcgetattr(inner)
    terminal = Terminal(inner, inner, colour=True)
    terminal.enter()
    entered = os.read(outer, 1000)
    assert not termios.tcgetattr(inner)[3] & (termios.ICANON | termios.ECHO)
    assert termios.tcgetattr(inner)[3] & termios.ISIG  # Ctrl-C and Ctrl-Z work
    terminal.enter()  # again, after it was continued
    assert os.read(outer, 1000) == entered
    terminal.leave()
    terminal.leave()
    assert termios.tcgetattr(inner) == before
    assert os.read(outer, 1000) == b"\x1b[?7h\x1b[?25h\x1b[?1049l"


@pytest.mark.parametrize("colour", [True, False])
def test_lines_are_drawn_over_those_before(ends: tuple[int, int], colour: bool) -> None:
    outer, inner = ends
    terminal = Terminal(inner, None, colour=colour)
    terminal.draw([[("a", "red"), ("b", "")], [], [("c", "")]])
    red = "\x1b[31ma\x1b[0m" if colour else "a"
    # The terminal driver may add a carriage return of its own.
    assert os.read(outer, 1000).decode().replace("\r\r", "\r") == (
        f"\x1b[H{red}b\x1b[K\r\n\x1b[K\r\nc\x1b[K\x1b[J"
    )


def test_keys(ends: tuple[int, int]) -> None:
    outer, inner = ends
    terminal = Terminal(inner, inner, colour=True)
    terminal.enter()
    os.write(outer, b"q\x1b[A\x1bOB\x1b[6~x \x1b[1;5Z\xff")
    assert terminal.keys() == [
        "q",
        "up",
        "down",
        "page down",
        "x",
        "page down",
        "\x1b[1;5Z",
        "\ufffd",
    ]
    terminal.leave()


def test_its_size(ends: tuple[int, int]) -> None:
    _, inner = ends
    terminal = Terminal(inner, None, colour=True)
    for lines, columns, expected in ((24, 80, (80, 24)), (0, 0, (80, 24)), (1, 2, (20, 4))):
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        assert terminal.size() == expected


def test_a_terminal_that_is_gone() -> None:
    outer, inner = pty.openpty()
    terminal = Terminal(inner, inner, colour=True)
    terminal.enter()
    os.close(outer)
    with pytest.raises(OSError, match="Input/output"):
        terminal.draw([[("a", "")]])
    terminal.leave()
    os.close(inner)
