"""Showing the output of ranks on the launcher's console while it goes to files.

Ranks write to their files themselves, so nothing here can hold them up. A thread follows the files
and prints what they gain. It is woken by inotify (or looks twice a second where that is not to be
had), reads a bounded piece of each file in turn, and waits for the console with a deadline.
"""

from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.directories import make_private
from undaunted.base.inotify import Inotify
from undaunted.fault_tolerance.output.console import Console
from undaunted.fault_tolerance.output.tail import FileTail

if TYPE_CHECKING:
    from collections.abc import Sequence

_BATCH_S = 0.02  # a rank that prints all the time wakes us at most this often
_POLL_S = 0.5  # without inotify
_JOIN_GRACE_S = 0.2  # beyond the deadline, for the last pieces to be counted


class TeeEntry(NamedTuple):
    """One stream of one rank: its file, the prefix of its lines, where they are shown."""

    path: str
    prefix: str
    stream_fd: int


class OutputTee:
    """Shows the growth of files on the console until closed. Files begin at their present end.

    ``problems`` says which files could not be followed and why, and, once closed, how much the
    reader of the console did not get. ``dropped_lines`` counts lines, ``unread_bytes`` what was not
    even read from the files because the time for closing was over.
    """

    def __init__(self, entries: Sequence[TeeEntry]) -> None:
        self.problems: list[str] = []
        self.unread_bytes = 0
        self._entries = entries
        self._tails: list[tuple[FileTail, Console]] = []
        self._consoles: dict[int, Console] = {}
        self._inotify: Inotify | None = None
        self._wake_fd = -1
        self._closing = False
        self._deadline = 0.0  # time.monotonic(); valid when closing
        self._thread: threading.Thread | None = None

    @property
    def dropped_lines(self) -> int:
        """Lines that were not shown because nobody read them."""
        return sum(console.dropped_lines for console in self._consoles.values())

    def start(self) -> None:
        """Open the files and begin to follow them. Call it before the ranks start."""
        if not self._entries:
            return
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._open()
        self._thread = threading.Thread(target=self._run, name="undaunted-tee", daemon=True)
        self._thread.start()

    def request_close(self, timeout_s: float) -> None:
        """Have the rest shown and the thread end within about ``timeout_s``. Does not wait."""
        if self._thread is None or self._closing:
            return
        self._deadline = time.monotonic() + timeout_s
        for console in self._consoles.values():
            console.deadline = self._deadline
        self._closing = True
        os.eventfd_write(self._wake_fd, 1)

    def close(self, timeout_s: float) -> bool:
        """Show what is left, for ``timeout_s`` at most, and release everything.

        Returns:
            False if the console itself hangs in a write; the thread then ends by itself or with
            the process.
        """
        self.request_close(timeout_s)
        if self._thread is None:
            return True
        self._thread.join(timeout_s + _JOIN_GRACE_S)
        if self._thread.is_alive():
            return False
        os.close(self._wake_fd)
        self._thread = None
        if self.dropped_lines or self.unread_bytes:
            self.problems.append(
                f"{self.dropped_lines} lines and {self.unread_bytes} bytes of the ranks' output "
                "were not shown because nobody read them in time; the log files are complete"
            )
        return True

    def _open(self) -> None:
        try:
            self._inotify = Inotify()
        except OSError:
            self._inotify = None
        for entry in self._entries:
            try:
                make_private(Path(entry.path).parent)
                tail = FileTail(entry.path, entry.prefix.encode(errors="surrogateescape"))
            except OSError as error:
                self.problems.append(f"{entry.path} is not shown: {error.strerror}")
                continue
            console = self._consoles.get(entry.stream_fd)
            if console is None:
                console = Console(entry.stream_fd, self._wait_for_console)
                self._consoles[entry.stream_fd] = console
            self._tails.append((tail, console))
            self._watch(entry.path)

    def _watch(self, path: str) -> None:
        if self._inotify is None:
            return
        try:
            self._inotify.watch(path)
        except OSError:  # out of watches: look at the clock instead, for all files
            self._inotify.close()
            self._inotify = None

    def _run(self) -> None:
        try:
            self._follow()
            for tail, console in self._tails:
                console.write(tail.finish())
                self.unread_bytes += tail.unread_bytes()
            for console in self._consoles.values():
                console.resume()
        finally:
            for tail, _ in self._tails:
                tail.close()
            if self._inotify is not None:
                self._inotify.close()

    def _follow(self) -> None:
        while True:
            closing = self._closing  # read before the files: what came before it is shown
            looked_at = time.monotonic()
            if closing and looked_at >= self._deadline:
                return
            found = self._show_more()
            if closing and not found:
                return
            if not closing and not any(tail.has_more for tail, _ in self._tails):
                self._wait_for_growth(looked_at + _BATCH_S)

    def _show_more(self) -> bool:
        """Show one chunk of every file; False if no file had anything new."""
        found = False
        for tail, console in self._tails:
            lines = tail.read()
            if lines is not None:
                found = True
                console.write(lines)
        return found

    def _wait_for_growth(self, not_before: float) -> None:
        """Wait until a file grew, but at least until ``not_before``; less when closing."""
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        pause_s = not_before - time.monotonic()
        if pause_s > 0 and poller.poll(pause_s * 1000):
            return
        for console in self._consoles.values():
            if console.stalled_fd is not None:
                poller.register(console.stalled_fd, select.POLLOUT)
        if self._inotify is not None:
            poller.register(self._inotify, select.POLLIN)
        poller.poll(_POLL_S * 1000 if self._inotify is None else None)
        if self._inotify is not None:
            self._inotify.drain()
        for console in self._consoles.values():
            console.resume()

    def _wait_for_console(self, fd: int, seconds: float) -> None:
        poller = select.poll()
        poller.register(fd, select.POLLOUT)
        if self._closing:  # the wake-up stays readable and would end each wait
            seconds = min(seconds, max(0.0, self._deadline - time.monotonic()))
        else:
            poller.register(self._wake_fd, select.POLLIN)
        poller.poll(seconds * 1000)
