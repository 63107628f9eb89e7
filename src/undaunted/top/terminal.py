"""The terminal: taken over for a while, drawn on, and given back as it was."""

from __future__ import annotations

import contextlib
import os
import re
import termios
from typing import TYPE_CHECKING

from undaunted.base.console import coloured

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.base.console import Line

# Another screen, no cursor, no breaking of lines; and back.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_KEYS = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "k": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "j": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    " ": "page down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
}
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z~]|\x1bO[A-Za-z]|.", re.DOTALL)
_LEAST_SIZE = (20, 4)


class Terminal:
    """Keys from ``keys_fd``, lines to ``screen_fd``.

    Args:
        screen_fd: a terminal.
        keys_fd: a terminal, None = there are no keys.
        colour: use styles.
    """

    def __init__(self, screen_fd: int, keys_fd: int | None, *, colour: bool) -> None:
        self._screen_fd = screen_fd
        self.keys_fd = keys_fd
        self._colour = colour
        self._before: list[object] | None = None
        self._entered = False

    def enter(self) -> None:
        """Take the terminal over; also after it was given back, or changed by somebody else.

        Raises:
            OSError: it is gone.
        """
        self._entered = True
        if self.keys_fd is not None:
            mode = _attributes(self.keys_fd)
            if self._before is None:
                self._before = list(mode)
            flags = mode[3]
            assert isinstance(flags, int)
            mode[3] = flags & ~(termios.ICANON | termios.ECHO)
            _set_attributes(self.keys_fd, mode)
        self._write(_ENTER)

    def leave(self) -> None:
        """Give the terminal back as it was; calling it again does nothing."""
        if not self._entered:
            return
        self._entered = False
        with contextlib.suppress(OSError, termios.error):
            termios.tcflow(self._screen_fd, termios.TCOON)  # it may have been stopped by Ctrl-S
        with contextlib.suppress(OSError):
            self._write(_LEAVE)
        if self.keys_fd is not None and self._before is not None:
            with contextlib.suppress(OSError):
                _set_attributes(self.keys_fd, self._before)

    def size(self) -> tuple[int, int]:
        """Return columns and lines."""
        try:
            columns, lines = os.get_terminal_size(self._screen_fd)
        except OSError:
            columns, lines = 0, 0
        # A terminal that does not know its size says 0.
        return max(columns or 80, _LEAST_SIZE[0]), max(lines or 24, _LEAST_SIZE[1])

    def draw(self, lines: Sequence[Line]) -> None:
        """Show these lines, no more than there is room for.

        Raises:
            OSError: the terminal is gone.
        """
        drawn = (coloured(line, self._colour) + _END_OF_LINE for line in lines)
        self._write(_HOME + "\r\n".join(drawn) + _BELOW)

    def keys(self) -> list[str] | None:
        """Return the keys that were pressed, by name; None = there will be no more.

        Raises:
            OSError: the terminal is gone.
        """
        assert self.keys_fd is not None
        data = os.read(self.keys_fd, 1024)
        if not data:
            return None
        found = _SEQUENCE.findall(data.decode("utf-8", "replace"))
        return [_KEYS.get(key, key) for key in found]

    def _write(self, text: str) -> None:
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        while data:
            data = data[os.write(self._screen_fd, data) :]


def _attributes(fd: int) -> list[object]:
    try:
        return list(termios.tcgetattr(fd))
    except termios.error as error:
        raise OSError(*error.args) from error


def _set_attributes(fd: int, mode: list[object]) -> None:
    try:
        termios.tcsetattr(fd, termios.TCSANOW, mode)  # type: ignore[arg-type]
    except termios.error as error:
        raise OSError(*error.args) from error
