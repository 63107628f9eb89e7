"""Sends results to a program elsewhere, each once, as it comes. Nobody waits for that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from undaunted.base.deadline import off_loop
from undaunted.base.http_client import NoAnswerError, exchange

if TYPE_CHECKING:
    from collections.abc import Mapping

_LIMIT_S = 10.0
_MOST = 1000  # results that wait
_REFUSED = 300  # a status of HTTP from here on


class Export:
    """Results on their way to a URL, in the order in which they came. Used on one loop.

    Args:
        url: ``http(s)://HOST[:PORT]/PATH``, which takes JSON by POST.

    Attributes:
        sent, lost: how many, since the start.
        problem: why the last one was lost, "" = it was not.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = f"{parts.scheme}://{parts.netloc}"
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(_MOST)
        self._slot = asyncio.Semaphore(1)
        self._task: asyncio.Task[None] | None = None
        self.sent = self.lost = 0
        self.problem = ""

    def begin(self) -> None:
        """Send what comes from now on."""
        self._task = asyncio.create_task(self._send_on())

    def give(self, result: Mapping[str, Any]) -> None:
        """Have a result sent."""
        try:
            self._waiting.put_nowait(msgspec.json.encode(result))
        except asyncio.QueueFull:
            self.lost += 1
            self.problem = f"{_MOST} wait"

    async def close(self) -> None:
        """Send no more; what waits is lost."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _send_on(self) -> None:
        while True:
            body = (await self._waiting.get()).decode()
            self.problem = await self._send(body)
            self.sent += not self.problem
            self.lost += bool(self.problem)

    async def _send(self, body: str) -> str:
        """Send a result; return why it could not be, "" = it could."""
        try:
            said = await off_loop(
                self._slot,
                2 * _LIMIT_S,
                lambda: exchange(self._server, "POST", self._path, body, limit_s=_LIMIT_S),
            )
        except (OSError, NoAnswerError) as error:
            return getattr(error, "strerror", None) or str(error) or type(error).__name__
        return f"it answers {said.status}" if said.status >= _REFUSED else ""
