"""Showing the output of ranks on the launcher's console while it goes to files.

Ranks write to their files themselves, so nothing here can hold them up. A thread follows the files
and prints what they gain. It is woken by inotify (or looks twice a second where that is not to be
had), reads a bounded piece of each file in turn, and waits for the console with a deadline.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.directories import make_private
from undaunted.fault_tolerance.output.console import Console
from undaunted.fault_tolerance.output.tail import FileTail
from undaunted.logs.growth import Growth

if TYPE_CHECKING:
    from collections.abc import Sequence

_BATCH_S = 0.02  # a rank that prints all the time wakes us at most this often
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
        self._growth: Growth | None = None
        self._closing = False
        self._closed = False
        self._release_once = threading.Lock()
        self._deadline = 0.0  # time.monotonic(); valid when closing
        self._thread: threading.Thread | None = None

    @property
    def dropped_lines(self) -> int:
        """Lines that were not shown because nobody read them."""
        return sum(console.dropped_lines for console in self._consoles.values())

    def start(self) -> None:
        """Open the files and begin to follow them. Call it before the ranks start.

        On a disk that does not answer for a while, another thread may close it meanwhile.
        """
        if not self._entries or self._closing:
            return
        growth = self._growth = Growth()
        self._open(growth)
        thread = threading.Thread(
            target=self._run, args=(growth,), name="undaunted-tee", daemon=True
        )
        thread.start()
        self._thread = thread
        if self._closed:  # and nobody will do it again
            self._release()

    def request_close(self, timeout_s: float) -> None:
        """Have the rest shown and the thread end within about ``timeout_s``. Does not wait."""
        if self._closing:
            return
        self._deadline = time.monotonic() + timeout_s
        for console in list(self._consoles.values()):
            console.deadline = self._deadline
        self._closing = True
        if self._growth is not None:
            self._growth.wake()

    def close(self, timeout_s: float) -> bool:
        """Show what is left, for ``timeout_s`` at most, and release everything.

        Returns:
            False if the console itself hangs in a write; the thread then ends by itself or with
            the process.
        """
        self.request_close(timeout_s)
        self._closed = True
        return self._thread is None or self._release()

    def _release(self) -> bool:
        """Wait for the thread and give back what it used; return whether it has ended."""
        assert self._thread is not None, "it was started"
        self._thread.join(max(0.0, self._deadline - time.monotonic()) + _JOIN_GRACE_S)
        if self._thread.is_alive():
            return False
        with self._release_once:
            growth, self._growth = self._growth, None
        if growth is None:
            return True
        growth.close()
        if self.dropped_lines or self.unread_bytes:
            self.problems.append(
                f"{self.dropped_lines} lines and {self.unread_bytes} bytes of the ranks' output "
                "were not shown because nobody read them in time; the log files are complete"
            )
        return True

    def _open(self, growth: Growth) -> None:
        for entry in self._entries:
            try:
                make_private(Path(entry.path).parent)
                tail = FileTail(entry.path, entry.prefix.encode(errors="surrogateescape"))
            except OSError as error:
                self.problems.append(f"{entry.path} is not shown: {error.strerror}")
                continue
            console = self._consoles.get(entry.stream_fd)
            if console is None:
                console = Console(entry.stream_fd, partial(self._wait_for_console, growth))
                self._consoles[entry.stream_fd] = console
            self._tails.append((tail, console))
            growth.watch(entry.path)

    def _run(self, growth: Growth) -> None:
        try:
            self._follow(growth)
            for tail, console in self._tails:
                console.write(tail.finish())
                self.unread_bytes += tail.unread_bytes()
            for console in self._consoles.values():
                console.resume()
        finally:
            for tail, _ in self._tails:
                tail.close()
            growth.stop_watching()

    def _follow(self, growth: Growth) -> None:
        while True:
            closing = self._closing  # read before the files: what came before it is shown
            looked_at = time.monotonic()
            if closing and looked_at >= self._deadline:
                return
            found = self._show_more()
            if closing and not found:
                return
            if not closing and not any(tail.has_more for tail, _ in self._tails):
                fds = [console.stalled_fd for console in self._consoles.values()]
                growth.wait(looked_at + _BATCH_S, writable=[fd for fd in fds if fd is not None])
                for console in self._consoles.values():
                    console.resume()

    def _show_more(self) -> bool:
        """Show one chunk of every file; False if no file had anything new."""
        found = False
        for tail, console in self._tails:
            lines = tail.read()
            if lines is not None:
                found = True
                console.write(lines)
        return found

    def _wait_for_console(self, growth: Growth, fd: int, seconds: float) -> None:
        if self._closing:  # the wake-up stays readable and would end each wait
            seconds = min(seconds, max(0.0, self._deadline - time.monotonic()))
        growth.wait_for_writer(fd, seconds, until_woken=not self._closing)
