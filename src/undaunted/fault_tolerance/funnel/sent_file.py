"""A log that is written by the log server, used like one of this node."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.funnel.messages import MOST_BYTES
from undaunted.fault_tolerance.funnel.writer import lost_here
from undaunted.logs.log_file import LogFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from undaunted.fault_tolerance.funnel.sender import Sender

_ROOM_S = 2.0  # how long one attempt waits for room in the queue
# Beyond these, lines are lost rather than kept on the disk of the node.
AWAY_S = 60.0  # nothing was written at the other end for so long
BEHIND_BYTES = 1024 * 1024 * 1024  # output of ranks that waits in files
_LONGEST_LINE = MOST_BYTES // 2


class SentFile(LogFile):
    """One file at the log server. Used by one thread, which may wait.

    Args:
        sender: of this launcher.
        path: relative to the directory of the logs.
        behind: how many bytes wait to be copied to it.
    """

    def __init__(self, sender: Sender, path: str, behind: Callable[[], int]) -> None:
        self.path = path
        self.error = ""
        self._sender = sender
        self._behind = behind
        self._line = b""  # begun, without its end
        self._pieces: deque[bytes] = deque()
        self._lost_lines = self._lost_bytes = 0

    @property
    def blocked(self) -> bool:
        """Whether something is waiting for room."""
        return bool(self._pieces)

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Append the pieces, or keep them for `flush`. Never raises.

        A line of more than 256 KiB arrives in pieces, each a line of its own.
        """
        data = b"".join((self._line, *pieces))
        end = data.rfind(b"\n") + 1
        self._line = data[end:]
        if len(self._line) > _LONGEST_LINE:
            data, end, self._line = data + b"\n", len(data) + 1, b""
        start = 0
        while start < end:
            stop = min(end, start + MOST_BYTES)
            if stop < end:
                stop = data.rfind(b"\n", start, stop) + 1 or stop
            piece = data[start:stop]
            self._pieces.append(piece if piece.endswith(b"\n") else piece + b"\n")
            start = stop
        self.flush()

    def flush(self) -> None:
        """Try again to send what is waiting, for about two seconds. Never raises."""
        while self._pieces:
            data = self._pieces[0]
            notice = b""
            if self._lost_lines:
                notice = lost_here(self._lost_lines, self._lost_bytes)
            if self._sender.put(self.path, notice + data, _ROOM_S):
                self._pieces.popleft()
                self._lost_lines = self._lost_bytes = 0
            elif self._sender.stalled_s() > AWAY_S or self._behind() > BEHIND_BYTES:
                self._pieces.popleft()
                self._lost_lines += data.count(b"\n")
                self._lost_bytes += len(data)
            else:
                self.error = "the log server takes nothing"
                return
        self.error = ""

    def close(self) -> None:
        """Nothing is held: the sender sends what it has taken."""
        if self._lost_lines:
            self._sender.put(self.path, lost_here(self._lost_lines, self._lost_bytes), _ROOM_S)
