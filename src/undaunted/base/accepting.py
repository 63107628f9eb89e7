"""Accepts connections on the running loop, so that clients that say nothing keep nobody out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_ACCEPT_AGAIN_S = 1.0


class Acceptor:
    """Accepts from one listening socket, which it owns from then on. Made, and closed, on one loop.

    Where no descriptor is left for a connection, it tries again after a second.
    """

    def __init__(
        self,
        listener: socket.socket,
        take: Callable[[socket.socket], None],
        short: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin to accept.

        Args:
            listener: bound and listening.
            take: gets each connection, which does not block.
            short: called when descriptors or memory are short; may free some.
        """
        self._listener = listener
        self._take = take
        self._short = short
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept no more."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # of descriptors or memory, there are none left
            self._loop.remove_reader(self._listener)
            self._again = self._loop.call_later(_ACCEPT_AGAIN_S, self._listen)
            self._short()
            return
        connection.setblocking(False)
        self._take(connection)


class Waiting:
    """Connections that wait for their clients: to show who they are, to ask, or to read.

    Each may wait for so long, and so many may: one more takes the place of the one that has waited
    longest. So whoever stalls costs a socket for a while, and nobody a wait.
    """

    def __init__(
        self, most: int | None, limit_s: float, crowded: Callable[[], None] = lambda: None
    ) -> None:
        """Nobody waits yet.

        Args:
            most: how many may wait; None = any number.
            limit_s: how long each of them may, in seconds.
            crowded: called when one has to go because there are too many.
        """
        self._most = most
        self._limit_s = limit_s
        self._crowded = crowded
        # The oldest first.
        self._waiting: dict[object, tuple[Callable[[], object], asyncio.TimerHandle]] = {}

    def add(self, connection: object, drop: Callable[[], object]) -> None:
        """Note that a connection waits from now on, unless it does already.

        Args:
            connection: of any kind.
            drop: ends it.
        """
        if connection in self._waiting:
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._limit_s, self._drop, connection)
        self._waiting[connection] = drop, timer
        if self._most is not None and len(self._waiting) > self._most:
            self._crowded()
            self.drop_oldest()

    def remove(self, connection: object) -> None:
        """Note that it does not wait any more, or has ended."""
        if connection in self._waiting:
            _, timer = self._waiting.pop(connection)
            timer.cancel()

    def drop_oldest(self) -> None:
        """End the one that has waited longest, if any does."""
        if self._waiting:
            self._drop(next(iter(self._waiting)))

    def _drop(self, connection: object) -> None:
        drop, timer = self._waiting.pop(connection)
        timer.cancel()
        drop()
