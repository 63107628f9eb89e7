"""The way of one rank's file to one sink: a position, a prefix, a filter.

Nothing but positions is remembered: a line that was begun stays in the rank's file until its end is
there, however long it gets. So memory is bounded by the size of a chunk.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.output.filters import CarriageReturns, everything

if TYPE_CHECKING:
    from undaunted.fault_tolerance.output.filters import LineFilter
    from undaunted.fault_tolerance.output.rank_file import RankFile
    from undaunted.fault_tolerance.output.sink import Sink

# A temporary file gives its disk space back in pieces of this size, and keeps this much of its end.
RECLAIM_BYTES = 16 * 1024 * 1024
KEEP_BYTES = 1024 * 1024


class LineCopy:
    """Copies what one file gains, from its present end on. Used by one thread."""

    def __init__(
        self,
        file: RankFile,
        prefix: bytes,
        keeps: LineFilter = everything,
        *,
        temporary: bool = False,
    ) -> None:
        """Prepare.

        Args:
            file: others append to it.
            prefix: put before each line.
            keeps: filter of lines; one longer than a chunk is judged by its beginning.
            temporary: nobody else wants the file: the disk space of what was copied is freed, and
                the file is removed once all is.
        """
        self.file, self._skipped = file, 0
        self._prefix, self._keeps = prefix, keeps
        self._temporary = self._reclaims = temporary
        self._done = self._scanned = 0  # no line ends between the two
        self._long_end = 0  # end of a long line whose beginning was copied
        self._lacks_end = False

    def open(self, sink: Sink) -> None:
        """Open the file for a sink; what is in it already is not copied.

        Raises:
            OSError: not possible.
        """
        self._sink, self._chunk = sink, sink.chunk_bytes
        self._live = CarriageReturns() if sink.live else None
        self._done = self._scanned = self.file.open()
        if self._temporary:
            self.file.freed = self._done

    @property
    def in_line(self) -> bool:
        """Return whether part of a line was copied: go on with this file before any other."""
        return self._long_end > self._done

    def step(self) -> bool:
        """Copy the whole lines of the next chunk, or a piece of a long line.

        When the sink is blocked afterwards, it must be flushed before the next call.

        Returns:
            False if the file has nothing new, or cannot be read.
        """
        if self.in_line:
            return self._copy_piece()
        data = self.file.read(self._scanned, self._chunk)
        if data is None:
            return self._skip_gap()
        end = data.rfind(b"\n") + 1
        if self._live is not None:
            end = max(end, data.rfind(b"\r") + 1)
        if not end:
            return len(data) == self._chunk and self._pass_over(data)
        if self._scanned > self._done:
            return self._begin_long(self._scanned + data.find(b"\n") + 1)
        self._advance(end)
        self._hand_on(data if end == len(data) else data[:end])
        return True

    def finish(self) -> None:
        """Copy a last line that has no end, which it gets; of a long one, `step` copies the rest.

        Only after `step` has returned False.
        """
        data = self.file.read(self._scanned, self._chunk)
        if self._scanned > self._done and not self.in_line:
            end = (data or b"").find(b"\n") + 1
            self._lacks_end = not end
            self._begin_long(self._scanned + (end or len(data or b"")))
        elif data and not self.in_line:
            self._advance(len(data))
            self._hand_on(data if data.endswith(b"\n") else data + b"\n")

    def complaint(self, why: str) -> str:
        """Say what has not worked."""
        return f"the output in {self.file.path} is not copied: {why}"

    def unread_bytes(self) -> int:
        """Return how much of what is in the file was not copied."""
        return max(0, self.file.size() - max(self._done, self.file.freed))

    def skipped_bytes(self) -> int:
        """Return how much was freed before it was copied, up to the next line."""
        return self._skipped + max(0, self.file.freed - self._done)

    def close(self, *, complete: bool) -> None:
        """Release the file; remove it if it is temporary, and everything was copied."""
        self.file.close()
        if complete and self._temporary:
            path = Path(self.file.path)
            with contextlib.suppress(OSError):
                path.unlink()
                path.parent.rmdir()  # only if nothing else is in it
                path.parent.parent.rmdir()

    def _pass_over(self, data: bytes) -> bool:
        """Take a chunk without any end of line."""
        if self._live is None:
            self._scanned += len(data)
        else:
            self._advance(len(data))
            self._hand_on(data + b"\n")
        return True

    def _begin_long(self, end: int) -> bool:
        """Copy the prefix of a line that ends at ``end``, and have the rest copied; or leave it."""
        beginning = self.file.read(self._done, self._chunk)
        if beginning is None:
            return self._skip_gap()
        if self._keeps(beginning + b"\n"):
            self._sink.write([self._prefix])
            self._long_end = end
        else:
            self._advance(end - self._done)
        return True

    def _copy_piece(self) -> bool:
        piece = self.file.read(self._done, min(self._chunk, self._long_end - self._done))
        if piece is None:
            return self._skip_gap()
        self._advance(len(piece))
        self._sink.write([piece] if self.in_line or not self._lacks_end else [piece, b"\n"])
        return bool(piece)

    def _hand_on(self, lines: bytes) -> None:
        if self._live is not None:
            lines = self._live(lines)
        if kept := self._keeps(lines):
            # One copy of the data, not three: the prefix after the last end of line is cut off.
            prefixed = kept.replace(b"\n", b"\n" + self._prefix)
            end = len(prefixed) - len(self._prefix)
            self._sink.write([self._prefix, memoryview(prefixed)[:end]])

    def _skip_gap(self) -> bool:
        """Go on with the first whole line that is left, and say in its place what is missing."""
        begin = self.file.freed
        data = self.file.read(begin, self._chunk)
        if data is None:  # more was freed meanwhile
            return True
        begin += data.find(b"\n") + 1  # of a line that is too long, the rest is copied
        gone = begin - self._done
        self._skipped += gone
        text = f"[undaunted] {gone} bytes are missing here: --log-max-bytes removed them first\n"
        self._sink.write([b"\n" if self.in_line else b"", text.encode()])
        self._advance(gone)
        self._long_end = 0
        return True

    def _advance(self, count: int) -> None:
        self._done += count
        self._scanned = self._done
        if self._reclaims and self._done - KEEP_BYTES - self.file.freed >= RECLAIM_BYTES:
            # Where the file system cannot do that, the file is as long as the output until its end.
            self._reclaims = self.file.free(self._done - KEEP_BYTES)
