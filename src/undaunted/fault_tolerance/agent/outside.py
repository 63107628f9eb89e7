"""What the agent is told from outside: by signals, and by the front on the user's behalf."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence


class Told(Protocol):
    """Who is told. Called on the event loop."""

    def told_to_stop(self, number: int, *, again: bool) -> None:
        """The launcher got this signal; ``again`` if not for the first time."""

    def told_to_kill(self) -> None:
        """The user insists: a second Ctrl-C."""

    def front_gone(self) -> None:
        """Nobody is left to return an exit code to."""


class Outside:
    """Listens to the front's socket and to signals.

    Args:
        front: the socket; whoever made it closes it.
        told: who is told.
        signals: those that mean to stop.
    """

    def __init__(self, front: socket.socket, told: Told, signals: Sequence[int]) -> None:
        self._front = front
        self._told = told
        self._signals = signals
        self._interrupts = 0
        self._seen: set[int] = set()

    def open(self) -> None:
        """Begin to listen."""
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.add_signal_handler(number, self._stop, number)
        self._front.setblocking(False)
        loop.add_reader(self._front.fileno(), self._front_says)

    def close(self) -> None:
        """Listen to the front no more; a signal still does not end this process."""
        asyncio.get_running_loop().remove_reader(self._front.fileno())

    def _front_says(self) -> None:
        try:
            said = self._front.recv(64)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._told.front_gone()
            return
        for number in said:
            self._interrupts += number == signal.SIGINT
            if self._interrupts > 1 and number == signal.SIGINT:
                self._told.told_to_kill()
            else:
                self._stop(number)

    def _stop(self, number: int) -> None:
        again = number in self._seen
        self._seen.add(number)
        self._told.told_to_stop(number, again=again)
