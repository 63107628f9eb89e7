"""A launcher's side of the log server: a bounded queue, and a thread that sends what is in it.

Writers may wait for room: these are threads that copy files, never a rank and never the
launcher's own loop. A message stays in the queue until it is written at the other end.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base.deadline import wait_for
from undaunted.coordinator.wire import client
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.credentials import TlsError, TokenError
from undaunted.fault_tolerance import job_access
from undaunted.fault_tolerance.output.log_file import LogFile
from undaunted.fault_tolerance.output.server import messages as w
from undaunted.fault_tolerance.output.server.messages import MOST_BYTES
from undaunted.fault_tolerance.output.server.writer import lost_here

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from undaunted.coordinator.wire.connection import Connection
    from undaunted.coordinator.wire.handshake import Terms
    from undaunted.fault_tolerance.nodes_config import Nodes

QUEUE_BYTES = 8 * 1024 * 1024
_RETRY_S = 0.5
_RETRY_MOST_S = 5.0
_QUIETLY_S = 5.0  # launchers of a job do not start at the same moment
_STALL_S = 5.0  # at the end: how long nothing may be written before the rest is given up
_JOIN_S = 5.0
_ROOM_S = 2.0  # how long one attempt waits for room in the queue
# Beyond these, lines are lost rather than kept on the disk of the node.
AWAY_S = 60.0  # nothing was written at the other end for so long
BEHIND_BYTES = 1024 * 1024 * 1024  # output of ranks that waits in files
_LONGEST_LINE = MOST_BYTES // 2


class Sender:
    """One per launcher.

    Args:
        nodes: of the job: token and TLS.
        terms: job, version and name of this node; the token is found by the thread.
        address: of the log server.
        say: shows a line; called by the thread.
    """

    def __init__(
        self, nodes: Nodes, terms: Terms, address: str, say: Callable[[str], None]
    ) -> None:
        self._nodes, self._terms, self._address, self._say = nodes, terms, address, say
        self._name = os.urandom(8).hex()
        self._changed = threading.Condition()
        self._queue: deque[w.Lines] = deque()  # not written at the other end
        self._bytes = 0
        self._last_number = -1
        self._progress_s = time.monotonic()  # when something was written last
        self._closing = self._ending = False
        # The thread's own:
        self._sent = -1  # number of what was sent last over this connection
        self._ever_sent = -1  # over any
        self._in_flight = 0
        self._window = 0
        self._connection: Connection | None = None
        self._told = False
        self._quiet_until_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="undaunted-log-sender", daemon=True)

    def begin(self) -> None:
        """Send from now on what was put before and what will be."""
        self._quiet_until_s = time.monotonic() + _QUIETLY_S
        self._thread.start()

    # --- for those who write --------------------------------------------------------------------

    def put(self, path: str, data: bytes, timeout_s: float) -> bool:
        """Have whole lines appended to a file; False if there is no room within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._bytes and self._bytes + len(data) > QUEUE_BYTES:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    return False
            if self._closing:
                return False
            self._last_number += 1
            lines = w.Lines(sender=self._name, number=self._last_number, path=path, data=data)
            if not self._queue:
                self._progress_s = time.monotonic()
            self._queue.append(lines)
            self._bytes += w.size(lines)
        self._poke()
        return True

    def stalled_s(self) -> float:
        """For how long nothing was written though something waits, seconds."""
        with self._changed:
            return time.monotonic() - self._progress_s if self._queue else 0.0

    def close(self, timeout_s: float) -> None:
        """Send what is waiting, for ``timeout_s`` at most, less where nothing is written."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            if self._closing:
                return
            self._progress_s = time.monotonic()
            self._ending = True
            self._poke()
            while self._queue and (now := time.monotonic()) < deadline:
                stalls_s = self._progress_s + _STALL_S - now
                if stalls_s <= 0:
                    break
                self._changed.wait(min(stalls_s, deadline - now))
            self._closing = True
            left = sum(lines.data.count(b"\n") for lines in self._queue)
        if left:
            self._say(f"{left} lines of logs did not reach the log server at {self._address}")
        self._poke()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            token = job_access.token(self._nodes)
            tls = job_access.contexts(self._nodes).client
        except (TokenError, TlsError, OSError) as error:
            self._say(f"logs cannot be sent to the log server: {error}")
            return
        self._terms = replace(self._terms, token=token)
        pause_s = _RETRY_S
        while not self._closing:
            link = _Link(self)
            attempt = client.connect(self._address, link, self._terms, tls=tls, messages=w.ToSender)
            try:
                self._connection = await self._unless_closed(attempt)
            except WireError as error:
                self._complain(str(error))
            if self._connection is not None:
                pause_s = _RETRY_S
                await self._stay(link)
            if await self._told_to_close(pause_s):
                return
            pause_s = min(_RETRY_MOST_S, pause_s * 2)

    async def _unless_closed(self, call: Coroutine[Any, Any, Connection]) -> Connection | None:
        """Return what ``call`` returns; None if the launcher ends first."""
        assert self._wake is not None
        task = asyncio.ensure_future(call)
        while not task.done() and not self._closing:
            self._wake.clear()
            woken = asyncio.ensure_future(self._wake.wait())
            await asyncio.wait({task, woken}, return_when=asyncio.FIRST_COMPLETED)
            woken.cancel()
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task})
        return None

    async def _stay(self, link: _Link) -> None:
        """Send until the connection is over, or nothing more is to be sent."""
        assert self._wake is not None
        assert self._connection is not None
        while not link.over:
            self._wake.clear()
            if self._closing:
                self._connection.close("the launcher ends")
            else:
                self._pump()
            await self._wake.wait()
        self._connection = None
        self._window = 0

    async def _told_to_close(self, timeout_s: float) -> bool:
        assert self._wake is not None
        deadline = time.monotonic() + timeout_s
        while not self._closing and (left_s := deadline - time.monotonic()) > 0:
            if self._ending:  # there is no time for long pauses
                left_s = min(left_s, _RETRY_S)
                deadline = min(deadline, time.monotonic() + _RETRY_S)
            self._wake.clear()
            try:
                await wait_for(self._wake.wait(), left_s)
            except TimeoutError:
                break
        return self._closing

    def ready(self, message: w.Ready) -> None:
        """The server takes lines from now on; what is not written is sent again."""
        if not message.known and self._ever_sent >= 0:
            self._mark_repeated()
        self.written(message.written)
        self._sent, self._in_flight = message.written, 0
        self._window = message.window
        self._told, self._quiet_until_s = False, 0.0
        self.poke_here()

    def written(self, number: int) -> None:
        """Everything up to this number is written."""
        with self._changed:
            while self._queue and self._queue[0].number <= number:
                lines = self._queue.popleft()
                self._bytes -= w.size(lines)
                if lines.number <= self._sent:
                    self._in_flight -= w.size(lines)
                self._progress_s = time.monotonic()
            self._changed.notify_all()
        self.poke_here()

    def _pump(self) -> None:
        """Send what the window has room for."""
        if self._connection is None or not self._window:
            return
        with self._changed:
            waiting = [lines for lines in self._queue if lines.number > self._sent]
        for lines in waiting:
            if self._in_flight and self._in_flight + w.size(lines) > self._window:
                return
            if not self._connection.send(lines):
                return
            self._sent = lines.number
            self._ever_sent = max(self._ever_sent, lines.number)
            self._in_flight += w.size(lines)

    def _mark_repeated(self) -> None:
        """A server that was started again may have written some of what comes again."""
        with self._changed:
            again = [lines for lines in self._queue if lines.number <= self._ever_sent]
            if not again:
                return
            count = sum(lines.data.count(b"\n") for lines in again)
            note = (
                f"[undaunted] the log server was started again: of the next {count} lines of node "
                f"{self._terms.node}, some may have been written before\n"
            ).encode()
            first = self._queue[0]
            self._queue[0] = msgspec.structs.replace(first, data=note + first.data)
            self._bytes += len(note)

    def _complain(self, why: str) -> None:
        if not self._told and (self._ending or time.monotonic() >= self._quiet_until_s):
            self._told = True
            self._say(f"the log server cannot be reached ({why}); trying again, logs wait here")

    def poke_here(self) -> None:
        """Have the thread look again; by the thread."""
        if self._wake is not None:
            self._wake.set()

    def _poke(self) -> None:
        loop = self._loop
        if loop is None or self._wake is None:
            return  # it looks when it has begun
        try:
            loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:  # it has ended
            return

    def introduce(self, connection: Connection) -> None:
        """First word on a connection."""
        connection.send(w.Open(sender=self._name))


class _Link:
    """Handler of one connection."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.over = False

    def opened(self, connection: Connection) -> None:
        """Say who we are."""
        self._sender.introduce(connection)

    def received(self, connection: Connection, message: Any) -> None:
        """The server answers."""
        del connection
        if isinstance(message, w.Ready):
            self._sender.ready(message)
        else:
            self._sender.written(message.number)

    def closed(self, connection: Connection, reason: str) -> None:
        """Another one will follow."""
        del connection, reason
        self.over = True
        self._sender.poke_here()


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
        """Return whether something is waiting for room."""
        return bool(self._pieces)

    @property
    def missing_lines(self) -> int:
        """Lines that are waiting."""
        return sum(piece.count(b"\n") for piece in self._pieces)

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Append the pieces, or keep them for `flush`. Never raises.

        A line of more than 256 KiB arrives in pieces, each a line.
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
