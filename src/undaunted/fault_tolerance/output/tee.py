"""Showing the output of ranks on the launcher's console while it goes to files.

Ranks write to their files themselves, so nothing here can hold them up. A thread follows the files
and prints what they gain. It is woken by inotify (or looks twice a second where that is not to be
had), reads a bounded piece of each file in turn, cuts it into lines with a prefix, and waits for
the console with a deadline.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.directories import make_private
from undaunted.fault_tolerance.output.console import Console
from undaunted.logs import holes
from undaunted.logs.growth import Growth

if TYPE_CHECKING:
    from collections.abc import Sequence

CHUNK_BYTES = 64 * 1024  # read at once, and the longest piece of a line that is kept in memory
_BATCH_S = 0.02  # a rank that prints all the time wakes us at most this often
_JOIN_GRACE_S = 0.2  # beyond the deadline, for the last pieces to be counted


class LineAssembler:
    """Turns bytes as they arrive into whole lines, each with a prefix.

    A carriage return ends a line as well, so that progress bars show up. A line that is longer than
    ``CHUNK_BYTES`` is shown in several pieces, each a line of its own: memory stays bounded.
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._partial = b""
        self._after_return = False

    def feed(self, data: bytes) -> bytes:
        """Return the whole lines that ``data`` completes, with prefixes; may be empty."""
        if not data:
            return b""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]  # second half of a CR LF whose line was given out already
        self._after_return = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        whole, newline, rest = data.rpartition(b"\n")
        if newline:
            lines, self._partial = self._partial + whole, rest
            return self._prefixed(lines)
        self._partial += rest
        return self.finish() if len(self._partial) > CHUNK_BYTES else b""

    def finish(self) -> bytes:
        """Return the line that was begun, ended here; empty if there is none."""
        lines, self._partial = self._partial, b""
        return self._prefixed(lines) if lines else b""

    def _prefixed(self, lines: bytes) -> bytes:
        return self._prefix + lines.replace(b"\n", b"\n" + self._prefix) + b"\n"


class FileTail:
    """Reads what is appended to a file, from its present end on.

    Attributes:
        has_more: whether the last read left something in the file.
        skipped_bytes: freed before they were read, see `BoundedFiles`, and up to the next line.
    """

    def __init__(self, path: str, prefix: bytes) -> None:
        """Open the file; it is created (0600) if the rank has not done so yet.

        Raises:
            OSError: not possible.
        """
        flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        self._offset = os.fstat(self._fd).st_size
        self._assembler = LineAssembler(prefix)
        self._gap = 0  # skipped just now, with the line that the gap ends in; 0 = not in a gap
        self.has_more = False
        self.skipped_bytes = 0

    def read(self) -> bytes | None:
        """Return the whole lines in the next chunk, or None when there is nothing new."""
        try:
            data = os.pread(self._fd, CHUNK_BYTES, self._offset)
        except OSError:  # a file system that fails: the console goes without
            data = b""
        self.has_more = len(data) == CHUNK_BYTES
        if not data:
            return None
        begun = b""
        if gone := holes.data_from(self._fd, self._offset) - self._offset:
            begun, self.has_more = self._assembler.finish(), True
            self._offset += gone
            self._gap += gone
            data = data[gone:]
        self._offset += len(data)
        return begun + self._assembler.feed(self._after_gap(data) if self._gap else data)

    def _after_gap(self, data: bytes) -> bytes:
        """Leave out the line whose beginning is gone, then say how much was skipped."""
        end = data.find(b"\n") + 1
        self._gap += end or len(data)
        if not end:
            return b""
        text = f"[undaunted] {self._gap} bytes are not shown: --log-max-bytes removed them first\n"
        self.skipped_bytes += self._gap
        self._gap = 0
        return text.encode() + data[end:]

    def finish(self) -> bytes:
        """Return the last line if it has no end."""
        self.skipped_bytes += self._gap
        return self._assembler.finish()

    def unread_bytes(self) -> int:
        """How much of the file was not looked at."""
        return max(0, os.fstat(self._fd).st_size - self._offset)

    def close(self) -> None:
        """Release the file."""
        os.close(self._fd)


class TeeEntry(NamedTuple):
    """One stream of one rank: its file, the prefix of its lines, where they are shown."""

    path: str
    prefix: str
    stream_fd: int


class OutputTee:
    """Shows the growth of files on the console until closed. Files begin at their present end.

    ``problems`` says which files could not be followed and why, and, once closed, how much the
    reader of the console did not get. ``dropped_lines`` counts lines. ``unread_bytes`` were not
    even read from the files, as the time for closing was over. ``skipped_bytes`` were freed before
    they were read.
    """

    def __init__(self, entries: Sequence[TeeEntry]) -> None:
        self.problems: list[str] = []
        self.unread_bytes = 0
        self.skipped_bytes = 0
        self._entries = entries
        self._tails: list[tuple[FileTail, Console]] = []
        self._consoles: dict[int, Console] = {}
        self._growth: Growth | None = None
        self._closing = False
        self._closed = False
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
        if self._growth is None or not self._growth.close():
            return True
        if self.dropped_lines or self.unread_bytes:
            self.problems.append(
                f"{self.dropped_lines} lines and {self.unread_bytes} bytes of the ranks' output "
                "were not shown because nobody read them in time; see the log files"
            )
        if self.skipped_bytes:
            self.problems.append(
                f"{self.skipped_bytes} bytes of the ranks' output were not shown: --log-max-bytes "
                "removed them before the reader of the console took them; raise it"
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
                self.skipped_bytes += tail.skipped_bytes
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
