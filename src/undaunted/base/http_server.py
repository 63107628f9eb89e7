"""A small server of pages over HTTP, on the running loop: GET and HEAD, one request a connection.

Whoever asks gets at most 10 s, and at most 8 are served at a time: one more takes the place of the
one that has been there longest. So whoever stalls costs a socket for a while, and nobody a wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.accepting import Acceptor, Waiting

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

DEADLINE_S = 10.0
MOST = 8
_LONGEST_HEAD = 16 << 10  # bytes
_TEXT = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """The answer to a request.

    Attributes:
        body: text, or bytes of another kind.
        kind: the type of the content.
        status: of HTTP.
    """

    body: str | bytes
    kind: str = _TEXT
    status: str = "200 OK"


class PageServer:
    """Serves one listening socket, which it owns from then on. Made, and closed, on one loop."""

    def __init__(
        self,
        listener: socket.socket,
        page: Callable[[str, str], Page],
        *,
        token: bytes = b"",
        token_option: str = "--token-file",  # noqa: S107 - the name of an option
        tls: ssl.SSLContext | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Begin to accept.

        Args:
            listener: bound and listening.
            page: gets the path and the header ``Accept``, returns the answer; called on the loop.
            token: what ``Authorization: Bearer`` must show; b"" = nothing.
            token_option: who does not show it is told where it comes from.
            tls: of the server; None = plain HTTP.
            deadline_s: longest that one request may take, in seconds.
        """
        self._page = page
        self._token = token
        self._token_option = token_option
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._served: set[asyncio.Task[None]] = set()
        self._waiting = Waiting(MOST, deadline_s)
        self._acceptor = Acceptor(listener, self._serve)

    async def close(self) -> None:
        """End at once, whoever is being served."""
        self._acceptor.close()
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)

    def _serve(self, connection: socket.socket) -> None:
        task = self._loop.create_task(self._converse(connection))
        self._served.add(task)
        self._waiting.add(task, task.cancel)
        task.add_done_callback(partial(self._done, connection))

    def _done(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        connection.close()  # also of a task that was cancelled before it began
        self._served.discard(task)
        self._waiting.remove(task)

    async def _converse(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            await self._answer(connection)

    async def _answer(self, connection: socket.socket) -> None:
        reader = asyncio.StreamReader(_LONGEST_HEAD)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._tls
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        try:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                writer.write(_response("431 Request Header Fields Too Large", "too long\n"))
            else:
                writer.write(self._respond(head))
            writer.close()
            await writer.wait_closed()
        finally:
            transport.abort()

    def _respond(self, head: bytes) -> bytes:
        first, *rest = head.decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in rest)
        }
        match first.split(" "):
            case [("GET" | "HEAD") as method, target, version] if version.startswith("HTTP/1."):
                path = target.partition("?")[0]
            case [_, _, version] if version.startswith("HTTP/1."):
                return _response("405 Method Not Allowed", "only GET\n", "Allow: GET, HEAD")
            case _:
                return _response("400 Bad Request", "this is no request of HTTP/1.1\n")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        shown = given.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
        if self._token and not hmac.compare_digest(shown, self._token):
            text = f"show the token of {self._token_option}: Authorization: Bearer TOKEN\n"
            return _response("401 Unauthorized", text, "WWW-Authenticate: Bearer")
        body, kind, status = self._page(path, headers.get("accept", ""))
        return _response(status, body, f"Content-Type: {kind}", only_head=method == "HEAD")


def _response(status: str, body: str | bytes, *headers: str, only_head: bool = False) -> bytes:
    content = body.encode() if isinstance(body, str) else body
    if not any(header.startswith("Content-Type:") for header in headers):
        headers = (f"Content-Type: {_TEXT}", *headers)
    lines = [
        f"HTTP/1.1 {status}",
        *headers,
        f"Content-Length: {len(content)}",
        "Connection: close",
    ]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head if only_head else head + content
