"""Answers `GET /metrics`, in a thread with its own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING

from undaunted.base.http_server import DEADLINE_S, Page, PageServer
from undaunted.journal.metrics.exposition import exposition

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from undaunted.journal.metrics.exposition import Family

# What is asked for again so soon is not read again: nobody can keep the launcher busy by asking.
_FRESH_S = 0.5
_PAGE = "metrics are at /metrics\n"


class Endpoint:
    """Serves one listening socket, which it owns from then on.

    `close` ends the thread; it never waits for clients that are being served.
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
        server = PageServer(
            self._listener,
            self._page,
            token=self._token,
            token_option="--metrics-token-file",  # noqa: S106 - the name of an option
            tls=self._tls,
            deadline_s=self._deadline_s,
        )
        await self._stop.wait()
        await server.close()

    def _page(self, path: str, accept: str) -> Page:
        if path != "/metrics":
            return Page(_PAGE, status="200 OK" if path == "/" else "404 Not Found")
        try:
            body, kind = exposition(self._current(), accept)
        except Exception as error:  # noqa: BLE001 - the client gets any error
            text = f"metrics cannot be read: {type(error).__name__}: {error}\n"
            return Page(text, status="500 Internal Server Error")
        return Page(body, kind)

    def _current(self) -> list[Family]:
        now = time.monotonic()
        if now - self._read_at >= _FRESH_S:
            self._families = self._read()
            self._read_at = now
        return self._families
