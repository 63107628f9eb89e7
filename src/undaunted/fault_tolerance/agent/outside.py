"""What reaches the agent from outside: signals, and the front on the user's behalf."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence


class Outside:
    """Listens to the front's socket and to signals.

    Args:
        front: the socket; whoever made it closes it.
        signals: signals that mean to stop.
        stop: called with such a signal, and whether it has come before.
        kill: called when the user insists: a second Ctrl-C.
        front_gone: called when nobody is left to return an exit code to.
    """

    def __init__(
        self,
        front: socket.socket,
        signals: Sequence[int],
        *,
        stop: Callable[[int, bool], None],
        kill: Callable[[], None],
        front_gone: Callable[[], None],
    ) -> None:
        self._front = front
        self._signals = signals
        self._on_stop = stop
        self._on_kill = kill
        self._on_front_gone = front_gone
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
            self._on_front_gone()
            return
        for number in said:
            self._interrupts += number == signal.SIGINT
            if self._interrupts > 1 and number == signal.SIGINT:
                self._on_kill()
            else:
                self._stop(number)

    def _stop(self, number: int) -> None:
        again = number in self._seen
        self._seen.add(number)
        self._on_stop(number, again)
