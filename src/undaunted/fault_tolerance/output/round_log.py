"""The log of a round: the output of all local ranks in one file, each line with its rank.

Ranks write to files of their own, so nothing here can hold them up. A thread copies what these
files gain, through a filter (`LineCopy`). Memory is bounded by the size of a chunk, whatever the
ranks print: nothing but positions is remembered, and a line that was begun stays in the rank's file
until its end is there, however long it gets.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.directories import make_private
from undaunted.fault_tolerance.output.job_logs import open_here
from undaunted.logs import holes
from undaunted.logs.growth import Growth
from undaunted.logs.ranks import rank_prefix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.fault_tolerance.output.job_logs import OpenLog
    from undaunted.logs.log_file import LogFile

# Takes whole lines of one stream, with their ends, in order; returns the lines to keep. Made anew
# for each stream and may remember what came before.
LineFilter = Callable[[bytes], bytes]

_HEADINGS = (b"Character devices:", b"Block devices:")
_DEVICE = re.compile(rb"\s*\d{1,4} \S+\s*")
_NVIDIA_DEVICE = re.compile(rb"\s*\d{1,4} nvidia[\w-]*\s*")
CHUNK_BYTES = 256 * 1024  # read at once
# A private file gives its disk space back in pieces of this size, and keeps this much of its end.
RECLAIM_BYTES = 16 * 1024 * 1024
KEEP_BYTES = 1024 * 1024
_BATCH_S = 0.02  # a rank that prints all the time wakes us at most this often
_RETRY_S = 1.0  # after the log could not be written to
_LATE_S = 5.0  # for the thread to end that was started after the round
_PATIENCE_S = 5.0  # while closing: how long nothing may be copied before that is given up


class ContainsFilter:
    """Keeps lines that contain one of several texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        needles = (re.escape(text.encode(errors="surrogateescape")) for text in texts)
        self._found = re.compile(b"|".join(needles)).search

    def __call__(self, lines: bytes) -> bytes:
        """Return the lines to keep."""
        if not self._found(lines):  # nearly always
            return b""
        return b"".join(line for line in _lines(lines) if self._found(line))


class DeviceListFilter:
    """Drops copies of ``/proc/devices``, which libraries of NVIDIA print, each rank its own.

    A copy begins with one of the two headings; the lines of devices and the empty lines after it
    belong to it. A line that names a device of NVIDIA in that form is dropped wherever it is.
    """

    def __init__(self) -> None:
        self._inside = False

    def __call__(self, lines: bytes) -> bytes:
        """Return the lines to keep."""
        suspect = self._inside or b" devices:" in lines or b" nvidia" in lines
        if not suspect:  # nearly always: one search, no copy
            return lines
        return b"".join(line for line in _lines(lines) if self._keeps(line))

    def _keeps(self, line: bytes) -> bool:
        text = line.strip()
        if text in _HEADINGS:
            self._inside = True
            return False
        self._inside = self._inside and (not text or _DEVICE.fullmatch(line) is not None)
        return not self._inside and _NVIDIA_DEVICE.fullmatch(line) is None


def _lines(lines: bytes) -> Iterator[bytes]:
    """Split at line feeds alone; `bytes.splitlines` does so at carriage returns as well."""
    return (line + b"\n" for line in lines.split(b"\n")[:-1])


class _GapError(Exception):
    """The file has lost its beginning, up to what was to be copied now (`BoundedFiles`)."""


class LineCopy:
    """One file of a rank. Used by one thread.

    Attributes:
        skipped_bytes: freed by another thread before they were copied, and up to the next line.
    """

    def __init__(
        self, path: str, prefix: bytes, keeps: LineFilter, *, reclaim: bool = False
    ) -> None:
        """Open the file; it is created (0600) if the rank has not done so yet.

        What is in it already is not copied.

        Args:
            path: the rank's file; others only append to it.
            prefix: put before each line.
            keeps: filter of lines; one longer than a chunk is judged by its beginning.
            reclaim: nobody else reads the file: free the disk space of what was copied.

        Raises:
            OSError: not possible.
        """
        flags = os.O_RDWR if reclaim else os.O_RDONLY
        self.path = path
        self._fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._done = os.fstat(self._fd).st_size
        self._scanned = self._done  # no line ends between the two
        self._long_end = 0  # end of a long line whose beginning was copied
        self._lacks_end = False
        self.skipped_bytes = 0
        self._prefix = prefix
        self._keeps = keeps
        self._freed = self._done if reclaim else None

    @property
    def done(self) -> int:
        """Position up to which the file was copied."""
        return self._done

    @property
    def in_line(self) -> bool:
        """Whether part of a line was copied: go on with this file before any other."""
        return self._long_end > self._done

    def step(self, log: LogFile) -> int:
        """Copy the whole lines in the next chunk, or a piece of a long line.

        When ``log`` is blocked afterwards, it must be flushed before the next call.

        Returns:
            How many bytes were looked at; 0 = nothing new in the file, or it cannot be read.
        """
        try:
            return self._step(log)
        except _GapError:
            return self._skip_gap(log)

    def _step(self, log: LogFile) -> int:
        if self.in_line:
            return self._copy_piece(log)
        data = self._read(self._scanned, CHUNK_BYTES)
        end = data.rfind(b"\n") + 1
        if not end:
            self._scanned += len(data)
            return len(data)
        if self._scanned > self._done:  # the end of a line that was begun earlier
            end = data.find(b"\n") + 1
            self._copy_line(self._scanned + end, log)
        else:
            self._done += end
            self._write_lines(data if end == len(data) else data[:end], log)
        self._scanned = max(self._done, self._long_end)
        self._reclaim()
        return end

    def finish(self, log: LogFile) -> bool:
        """Copy a last line that has no end, which it gets; True if there was one.

        Only after `step` has returned 0. Unless the line is short, `step` copies it.
        """
        if self._scanned == self._done or self.in_line:
            return False
        self._lacks_end = True
        try:
            self._copy_line(self._scanned, log)
        except _GapError:
            self._skip_gap(log)
        return True

    def unread_bytes(self) -> int:
        """How much of the file was not copied."""
        return max(0, os.fstat(self._fd).st_size - self._done)

    def close(self) -> None:
        """Release the file."""
        os.close(self._fd)

    def _copy_line(self, end: int, log: LogFile) -> None:
        """Copy one line that ends at ``end``; if it is long, begin to."""
        if end - self._done <= CHUNK_BYTES:
            line = self._read(self._done, end - self._done)
            self._done = end
            self._write_lines(line if line.endswith(b"\n") else line + b"\n", log)
        elif self._keeps(self._read(self._done, CHUNK_BYTES) + b"\n"):
            log.write([self._prefix])
            self._long_end = end
        else:
            self._done = end

    def _copy_piece(self, log: LogFile) -> int:
        piece = self._read(self._done, min(CHUNK_BYTES, self._long_end - self._done))
        self._done += len(piece)
        log.write([piece] if self.in_line or not self._lacks_end else [piece, b"\n"])
        self._reclaim()
        return len(piece)

    def _write_lines(self, lines: bytes, log: LogFile) -> None:
        if kept := self._keeps(lines):
            # One copy of the data, not three: the prefix after the last end of line is cut off.
            prefixed = kept.replace(b"\n", b"\n" + self._prefix)
            log.write([self._prefix, memoryview(prefixed)[: len(prefixed) - len(self._prefix)]])

    def _read(self, position: int, count: int) -> bytes:
        try:
            data = os.pread(self._fd, count, position)
        except OSError:
            return b""
        if data and self._freed is None and holes.data_from(self._fd, position) > position:
            raise _GapError
        return data

    def _skip_gap(self, log: LogFile) -> int:
        """Go on with the first whole line that is left; return how many bytes were skipped."""
        if self.in_line:
            log.write([b"\n"])
        begin = holes.data_from(self._fd, self._done)
        with contextlib.suppress(OSError):
            begin += os.pread(self._fd, CHUNK_BYTES, begin).find(b"\n") + 1
        gone = begin - self._done  # of a line that is too long, the rest is copied
        self.skipped_bytes += gone
        self._done += gone
        self._scanned, self._long_end = self._done, 0
        return gone

    def _reclaim(self) -> None:
        if self._freed is None or self._done - KEEP_BYTES - self._freed < RECLAIM_BYTES:
            return
        end = self._done - KEEP_BYTES
        # Where the file system cannot do that, the file is as long as the output until its end.
        holes.free(self._fd, self._freed, end)
        self._freed = end


class Source(NamedTuple):
    """One file that a rank writes to."""

    path: str
    rank: int  # in the job
    temporary: bool  # nobody asked for it: its space is freed, and it is removed in the end
    prefix: str | None = None  # of its lines; None = its rank, see `rank_prefix`


class RoundLog:
    """Copies the lines of files into one log until closed. Files begin at their present end.

    ``problems`` says, once closed, what is missing in the log, and why.
    """

    def __init__(
        self,
        path: str,
        sources: Sequence[Source],
        world_size: int,
        make_filter: Callable[[], LineFilter] = DeviceListFilter,
        open_log: OpenLog = open_here,
    ) -> None:
        """Prepare.

        Args:
            path: the log, which is appended to.
            sources: the files of the ranks.
            world_size: number of ranks of the job, for the width of the prefix.
            make_filter: called for every file; see `LineFilter`.
            open_log: opens the log.
        """
        self.problems: list[str] = []
        self._path = path
        self._sources = sources
        self._world_size = world_size
        self._make_filter = make_filter
        self._open_log = open_log
        self._copies: list[tuple[LineCopy, Source]] = []
        self._growth: Growth | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self._closed = False
        self._complete = False
        self._steps = 0  # of copying: whether the thread gets on

    def start(self) -> None:
        """Open everything and begin to copy. Call it before the ranks start. Never raises.

        On a disk that does not answer for a while, another thread may close it meanwhile.
        """
        if self._closing:
            return
        try:
            log = self._open_log(self._path, self._unread_bytes)
        except OSError as error:
            self._say_unwritten(error.strerror or str(error))
            return
        try:
            growth = self._growth = Growth()
            self._open(growth)
        except OSError as error:
            self._say_unwritten(error.strerror or str(error))
            self._release_files(log)
            if self._growth is not None:
                self._growth.close()
            return
        thread = threading.Thread(
            target=self._run, args=(log, growth), name="undaunted-round-log", daemon=True
        )
        thread.start()
        self._thread = thread
        if self._closed:  # and nobody will do it again
            self._release(_LATE_S)

    def request_close(self) -> None:
        """Have what is in the files now copied and the thread end. Does not wait."""
        if self._closing:
            return
        self._closing = True
        if self._growth is not None:
            self._growth.wake()

    def close(self, timeout_s: float) -> bool:
        """Wait until the log is complete, then remove temporary files.

        Args:
            timeout_s: longest wait in all; it ends sooner when copying does not get on.

        Returns:
            False if the disk hangs; the thread then ends with the process.
        """
        self.request_close()
        self._closed = True
        return self._thread is None or self._release(timeout_s)

    def _release(self, timeout_s: float) -> bool:
        """Wait for the thread and give back what it used; return whether it has ended."""
        assert self._thread is not None, "it was started"
        self._join(self._thread, time.monotonic() + timeout_s)
        if self._thread.is_alive():
            self._say_unwritten("not all could be written in time")
            return False
        if self._growth is not None and self._growth.close() and self._complete:
            self._remove_temporary()
        return True

    def _join(self, thread: threading.Thread, deadline: float) -> None:
        steps = -1
        while thread.is_alive() and self._steps != steps and time.monotonic() < deadline:
            steps = self._steps
            thread.join(min(_PATIENCE_S, max(0.0, deadline - time.monotonic())))

    def _open(self, growth: Growth) -> None:
        for source in self._sources:
            make_private(Path(source.path).parent)
            prefix = source.prefix
            if prefix is None:
                prefix = rank_prefix(source.rank, self._world_size)
            copy = LineCopy(
                source.path,
                prefix.encode(errors="surrogateescape"),
                self._make_filter(),
                reclaim=source.temporary,
            )
            self._copies.append((copy, source))
            growth.watch(source.path)

    def _run(self, log: LogFile, growth: Growth) -> None:
        try:
            self._follow(log, growth)
        finally:
            growth.stop_watching()
            self._release_files(log)

    def _follow(self, log: LogFile, growth: Growth) -> None:
        while True:
            closing = self._closing  # read before the files: what came before it is copied
            looked_at = time.monotonic()
            found = self._copy_more(log, growth)
            if log.blocked:
                missing = self._unread_bytes()
                self._say_unwritten(f"{log.error}; more than {missing} bytes are missing")
                return
            if closing and not found:
                break
            if not found:
                growth.wait(looked_at + _BATCH_S)
        self._complete = self._finish_lines(log, growth)
        if skipped := sum(copy.skipped_bytes for copy, _ in self._copies):
            self.problems.append(
                f"{skipped} bytes of the ranks' output are not in {self._path}: --log-max-bytes "
                "removed them before they were copied; raise it"
            )

    def _unread_bytes(self) -> int:
        return sum(copy.unread_bytes() for copy, _ in self._copies)

    def _copy_more(self, log: LogFile, growth: Growth) -> bool:
        """Copy one chunk of every file; False if no file had anything new."""
        found = False
        for copy, _ in self._copies:
            found = self._copy_from(copy, log, growth) or found
            if log.blocked:
                break
        return found

    def _copy_from(self, copy: LineCopy, log: LogFile, growth: Growth) -> bool:
        """Copy one chunk, or as many as a long line has."""
        found = False
        while copy.step(log):
            found = True
            self._steps += 1
            if not self._flushed(log, growth) or not copy.in_line:
                break
        return found

    def _finish_lines(self, log: LogFile, growth: Growth) -> bool:
        for copy, _ in self._copies:
            if copy.finish(log):
                self._flushed(log, growth)
                self._copy_from(copy, log, growth)
            if log.blocked:
                self._say_unwritten(log.error)
                return False
            if (missing := copy.unread_bytes()) > 0:
                self._say_unwritten(f"{missing} bytes of {copy.path} were not copied")
                return False
        return True

    def _flushed(self, log: LogFile, growth: Growth) -> bool:
        """Wait until the log takes what is waiting for it; False if it does not until the end."""
        while log.blocked:
            if self._closing:
                log.flush()
                return not log.blocked
            now = time.monotonic()
            growth.wait(now + _RETRY_S, now + _RETRY_S)
            log.flush()
        return True

    def _release_files(self, log: LogFile) -> None:
        for copy, _ in self._copies:
            copy.close()
        log.close()

    def _remove_temporary(self) -> None:
        for source in self._sources:
            if source.temporary:
                path = Path(source.path)
                with contextlib.suppress(OSError):
                    path.unlink()
                    path.parent.rmdir()  # only if nothing else is in it
                    path.parent.parent.rmdir()

    def _say_unwritten(self, why: str) -> None:
        kept = sorted({str(Path(source.path).parent.parent) for source in self._sources})
        self.problems.append(
            f"the log {self._path} is incomplete: {why}; what the ranks printed is in "
            f"{', '.join(kept)}"
        )
