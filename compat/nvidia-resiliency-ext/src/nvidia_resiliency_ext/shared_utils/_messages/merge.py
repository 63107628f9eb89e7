"""Putting the messages of several files in the order of their times. Opens nothing.

Messages are held back for a moment, in which those of slower files arrive; what comes later still
is not lost, only late. There is a bound for all of it.
"""

from __future__ import annotations

from typing import NamedTuple

from undaunted.fault_tolerance.output.stamps import STAMP, STAMP_BYTES

HELD_BYTES = 8 * 1024 * 1024


class Message(NamedTuple):
    """One message: its lines, when it was written, and up to where its file is read with it."""

    stamp: bytes
    number: int  # order of arrival
    file: str
    end: int
    lines: bytes
    arrived: float


class Merger:
    """Holds messages until it is their turn."""

    def __init__(self, hold_s: float, held_bytes: int = HELD_BYTES) -> None:
        """Hold messages for ``hold_s`` seconds, but never more than ``held_bytes``."""
        self._hold_s = hold_s
        self._limit = held_bytes
        self._held: list[Message] = []
        self._bytes = 0
        self._number = 0
        self._last: dict[str, bytes] = {}  # stamp of the last message of a file

    @property
    def full(self) -> bool:
        """Return whether messages should be taken before more are added."""
        return self._bytes >= self._limit

    def add(self, file: str, begin: int, lines: bytes, now: float) -> None:
        """Add whole lines of a file.

        Args:
            file: name of the file; its own order is kept, whatever its stamps say.
            begin: where in the file the lines begin.
            lines: with their ends. Lines without a stamp belong to the message before.
            now: clock of the caller, seconds.
        """
        end = begin
        for text in _messages(lines):
            end += len(text)
            stamp = self._last.get(file, b"")
            if STAMP.match(text):
                stamp = max(stamp, text[: STAMP_BYTES - 1])
            self._last[file] = stamp
            self._held.append(Message(stamp, self._number, file, end, text, now))
            self._number += 1
            self._bytes += len(text)

    def take(self, now: float, *, everything: bool = False) -> list[Message]:
        """Return the messages whose turn it is, in order."""
        if everything or self.full:
            limit = max((message.stamp for message in self._held), default=b"")
        else:
            aged = [m.stamp for m in self._held if m.arrived <= now - self._hold_s]
            if not aged:
                return []
            limit = max(aged)
        taken = sorted(message for message in self._held if message.stamp <= limit)
        self._held = [message for message in self._held if message.stamp > limit]
        self._bytes = sum(len(message.lines) for message in self._held)
        return taken

    def next_turn(self) -> float | None:
        """Return when `take` will return something, None if nothing is held."""
        return self._held[0].arrived + self._hold_s if self._held else None

    def forget(self, file: str) -> None:
        """The file will not grow any more."""
        self._last.pop(file, None)


def _messages(lines: bytes) -> list[bytes]:
    """Split at lines that begin with a stamp."""
    found: list[bytes] = []
    begin = 0
    while begin < len(lines):
        end = lines.find(b"\n", begin) + 1 or len(lines)
        while end < len(lines) and not STAMP.match(lines, end):
            end = lines.find(b"\n", end) + 1 or len(lines)
        found.append(lines[begin:end])
        begin = end
    return found
