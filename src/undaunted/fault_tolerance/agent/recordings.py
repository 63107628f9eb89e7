"""Asks the ranks of a round what their Flight Recorders hold, and what else `worker.witness` knows.

See `worker.witness`, which answers.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from undaunted.base.deadline import wait_for
from undaunted.coordinator.wire.sockets import peer
from undaunted.fault_tolerance.worker.witness import HEAD_BYTES, MOST_BYTES, RECORDING

if TYPE_CHECKING:
    from collections.abc import Iterable

# A rank that has not answered by then holds the interpreter's lock, is stopped, or has no time.
ANSWER_S = 0.5
# To dump a full recorder takes 0.05 s of CPU time or more, which is a second where cores are too
# few. What is not heard is lost, and nothing waits for it.
_IDLY_S = 5.0
_MOST_BYTES = max(MOST_BYTES.values())  # an answer may come late, to an earlier question
_BACKLOG = 1024
_MOST_LINKS = 4096


class Recordings:
    """The connections of the ranks of one round after the other. Owns their sockets."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._links: dict[int, _Link] = {}  # by pid
        self._idle: asyncio.Task[dict[int, bytes | None]] | None = None  # see `ask_idly`

    def open(self) -> str:
        """Listen for the ranks of a round that is about to begin; return the socket's name.

        Raises:
            OSError: there is no socket to be had.
        """
        self.close()
        name = f"undaunted-{os.urandom(16).hex()}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(f"\0{name}")
        self._listener.listen(_BACKLOG)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        return name

    async def ask(self, pids: Iterable[int]) -> dict[int, bytes | None]:
        """Ask these processes; return what those say that are connected.

        b"" = it has no recording, None = it did not answer within `ANSWER_S`.
        """
        if self._idle is not None:
            self._idle.cancel()
            await asyncio.wait([self._idle])
        return await self._ask(pids, RECORDING, ANSWER_S)

    async def ask_idly(self, pids: Iterable[int], what: bytes) -> dict[int, bytes | None]:
        """Ask for `OwnTimes` or imports, if nobody asks; a question for recordings goes first."""
        if self._idle is not None:
            return {}
        self._idle = asyncio.ensure_future(self._ask(pids, what, _IDLY_S))
        try:
            await asyncio.wait([self._idle])
            return {} if self._idle.cancelled() else self._idle.result()
        finally:
            self._idle.cancel()
            self._idle = None

    async def _ask(
        self, pids: Iterable[int], what: bytes, limit_s: float
    ) -> dict[int, bytes | None]:
        for _ in range(_BACKLOG):  # processes that have just connected
            if not self._accept():
                break
        links = {pid: self._links[pid] for pid in pids if pid in self._links}
        answers = await asyncio.gather(*(link.ask(what, limit_s) for link in links.values()))
        return dict(zip(links, answers, strict=True))

    def close(self) -> None:
        """End the round."""
        if self._idle is not None:
            self._idle.cancel()
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        for link in self._links.values():
            link.close()
        self._listener, self._links = None, {}

    def _accept(self) -> bool:
        """Take one connection that waits; return whether there was one."""
        try:
            accepted = self._listener.accept() if self._listener is not None else None
        except OSError:
            return False
        if accepted is None:
            return False
        sock, who = accepted[0], peer(accepted[0])
        if who.user != os.geteuid() or len(self._links) >= _MOST_LINKS:
            sock.close()
            return True
        if who.pid in self._links:
            self._links[who.pid].close()
        self._links[who.pid] = _Link(sock)
        return True


class _Link:
    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._number = 0  # of the last question
        self._received = b""

    def close(self) -> None:
        """Also while an answer is waited for."""
        if self._sock.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()

    async def ask(self, what: bytes, limit_s: float) -> bytes | None:
        self._number = (self._number + 1) % 256
        try:
            self._sock.send(bytes([self._number]) + what)
            return await wait_for(self._answer(), limit_s)
        except OSError:  # TimeoutError is one
            return None

    async def _answer(self) -> bytes:
        while True:
            head = await self._read(HEAD_BYTES)
            size = int.from_bytes(head[1:], "big")
            if size > _MOST_BYTES:
                self.close()
                raise OSError("that is no answer of ours")
            body = (await self._read(HEAD_BYTES + size))[HEAD_BYTES:]
            self._received = self._received[HEAD_BYTES + size :]
            if head[0] == self._number:  # not an answer to an earlier question, that came late
                return body

    async def _read(self, size: int) -> bytes:
        """Return the first ``size`` bytes of what has been received; they stay there."""
        loop = asyncio.get_running_loop()
        while len(self._received) < size:
            more = await loop.sock_recv(self._sock, 1 << 16)
            if not more:
                raise OSError("the rank has ended")
            self._received += more
        return self._received[:size]
