"""Answers over HTTP while the launcher's loop turns, for probes that ask whether it lives.

The loop itself answers: one that stands still answers nobody, and the probe's own timeout tells.
Whoever can reach the port learns that and no more, so there is no token.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from undaunted.base.deadline import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "TORCHELASTIC_HEALTH_CHECK_PORT"
_MOST = 8  # connections at a time
_DEADLINE_S = 5.0
_LONGEST_HEAD = 4096
_END = b"\r\n\r\n"
_ALIVE = b"alive\n"


class Liveness:
    """One port.

    Args:
        port: None = nobody asks.
        say: shows a line.
        host: its address; None = all, as probes of Kubernetes come from outside of the pod.
    """

    def __init__(
        self, port: int | None, say: Callable[[str], None], host: str | None = None
    ) -> None:
        self._port, self._host = port, host
        self._say = say
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Begin to answer; if that is not possible, say so."""
        if self._port is None:
            return
        try:
            self._server = await asyncio.start_server(
                self._connected, self._host, self._port, limit=_LONGEST_HEAD, backlog=_MOST
            )
        except OSError as error:
            why = error.strerror or str(error)
            self._say(f"no probe is answered at port {self._port} ({VARIABLE}): {why}")

    async def close(self) -> None:
        """Answer no more."""
        if self._server is None:
            return
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        self._server = None

    @property
    def ports(self) -> list[int]:
        """Where it answers."""
        sockets = self._server.sockets if self._server is not None else ()
        return [each.getsockname()[1] for each in sockets]

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _MOST:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(_converse(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    too_slow = (TimeoutError, asyncio.TimeoutError)  # two classes until Python 3.11
    refused = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
    try:
        with contextlib.suppress(*too_slow, *refused):
            head = await wait_for(reader.readuntil(_END), _DEADLINE_S)
            writer.write(_answer(head))
            await wait_for(writer.drain(), _DEADLINE_S)
            writer.write_eof()
            await wait_for(reader.read(), _DEADLINE_S)
    finally:
        writer.transport.abort()


def _answer(head: bytes) -> bytes:
    method = head.split(b" ", 1)[0]
    known = method in (b"GET", b"HEAD")
    status = b"200 OK" if known else b"405 Method Not Allowed"
    body = _ALIVE if known else b"GET tells whether the launcher lives\n"
    lines = (
        b"HTTP/1.1 " + status,
        b"Content-Type: text/plain",
        b"Content-Length: %d" % len(body),
        b"Connection: close",
    )
    return b"\r\n".join(lines) + _END + (b"" if method == b"HEAD" else body)
