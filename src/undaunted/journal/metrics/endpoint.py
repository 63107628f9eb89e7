"""Answers `GET /metrics`, in a thread of its own with an event loop of its own.

Whoever asks gets at most 10 s, and at most 8 are served at a time: one more takes the place of the
one that has been there longest. So a scraper that stalls costs a socket for a while, and nobody a
wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from undaunted.journal.metrics.exposition import exposition

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from undaunted.journal.metrics.exposition import Family

DEADLINE_S = 10.0
MOST = 8
_LONGEST_HEAD = 16 << 10  # bytes
# What is asked for again so soon is not read again: nobody can keep the launcher busy by asking.
_FRESH_S = 0.5
_ACCEPT_AGAIN_S = 1.0
_PAGE = "metrics are at /metrics\n"


class Endpoint:
    """Serves one listening socket, which it owns from then on.

    `close` ends the thread; it never waits for whoever is being served.
    """

    def __init__(
        self,
        listener: socket.socket,
        read: Callable[[], list[Family]],
        *,
        token: bytes = b"",
        tls: ssl.SSLContext | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Start the thread.

        Args:
            listener: bound and listening.
            read: returns the metrics as they are now; called in the thread.
            token: what ``Authorization: Bearer`` must show; b"" = nothing.
            tls: of the server; None = plain HTTP.
            deadline_s: longest that one request may take, in seconds.
        """
        self._listener = listener
        self._read = read
        self._token = token
        self._tls = tls
        self._deadline_s = deadline_s
        self._families: list[Family] = []
        self._read_at = float("-inf")
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._served: set[asyncio.Task[None]] = set()
        self._staying: dict[asyncio.Task[None], None] = {}  # those not let go, the oldest first
        self._thread = threading.Thread(target=self._run, name="undaunted-metrics", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> bool:
        """End the thread; False if that takes too long, and it is left behind."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()
            self._listener.close()

    async def _serve(self) -> None:
        self._listener.setblocking(False)
        self._listen()
        await self._stop.wait()
        self._loop.remove_reader(self._listener)
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)

    def _listen(self) -> None:
        if not self._stop.is_set():
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # of descriptors or memory, there are none left
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_ACCEPT_AGAIN_S, self._listen)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._converse(connection))
        self._served.add(task)
        self._staying[task] = None
        task.add_done_callback(partial(self._done, connection))
        if len(self._staying) > MOST:
            oldest = next(iter(self._staying))
            del self._staying[oldest]
            oldest.cancel()

    def _done(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        connection.close()  # also of a task that was cancelled before it began
        self._served.discard(task)
        self._staying.pop(task, None)

    async def _converse(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError, asyncio.TimeoutError):
            await asyncio.wait_for(self._answer(connection), self._deadline_s)

    async def _answer(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(_LONGEST_HEAD)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._tls
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
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
            text = "show the token of --metrics-token-file: Authorization: Bearer TOKEN\n"
            return _response("401 Unauthorized", text, "WWW-Authenticate: Bearer")
        if path != "/metrics":
            return _response("200 OK" if path == "/" else "404 Not Found", _PAGE)
        try:
            body, kind = exposition(self._current(), headers.get("accept", ""))
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever asks is told
            text = f"metrics cannot be read: {type(error).__name__}: {error}\n"
            return _response("500 Internal Server Error", text)
        return _response("200 OK", body, f"Content-Type: {kind}", only_head=method == "HEAD")

    def _current(self) -> list[Family]:
        now = time.monotonic()
        if now - self._read_at >= _FRESH_S:
            self._families = self._read()
            self._read_at = now
        return self._families


def _response(status: str, body: str | bytes, *headers: str, only_head: bool = False) -> bytes:
    content = body.encode() if isinstance(body, str) else body
    if not any(header.startswith("Content-Type:") for header in headers):
        headers = ("Content-Type: text/plain; charset=utf-8", *headers)
    lines = [
        f"HTTP/1.1 {status}",
        *headers,
        f"Content-Length: {len(content)}",
        "Connection: close",
    ]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head if only_head else head + content
