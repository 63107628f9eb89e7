"""The live screen: waits for keys, signals, journals that grow and the next tick; draws."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from typing import TYPE_CHECKING

from undaunted.top.view import SORTS, Choice, screen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from undaunted.top.journals import Watch
    from undaunted.top.model import Job
    from undaunted.top.source import Source
    from undaunted.top.terminal import Terminal

# No more than so many seconds between two screens, however much happens.
_LEAST_S = 0.2
_NEWS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
_ENDS = (signal.SIGTERM, signal.SIGHUP)
_ALL = 1 << 30


class Screen:
    """Shows a run until the user has seen enough.

    Args:
        source: what is shown.
        watch: tells when there is more.
        terminal: where.
        interval_s: seconds between two looks at the pages.
    """

    def __init__(self, source: Source, watch: Watch, terminal: Terminal, interval_s: float) -> None:
        self._source = source
        self._watch = watch
        self._terminal = terminal
        self._interval_s = interval_s
        self._choice = Choice()
        self._page = 1
        self._job: Job | None = None

    def run(self) -> None:
        """Show until ``q`` is pressed.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            SystemExit: SIGTERM or SIGHUP.
            OSError: the terminal is gone.
        """
        with _signals() as signals_fd:
            try:
                self._terminal.enter()
                self._loop(signals_fd)
            finally:
                self._terminal.leave()

    def _loop(self, signals_fd: int) -> None:
        poll = select.poll()
        for fd in (signals_fd, self._terminal.keys_fd, self._watch.fileno()):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        next_look = next_draw = 0.0
        while True:
            now = time.monotonic()
            if now >= next_look:
                self._look()
                next_look = now + (0.0 if self._choice.loading is not None else self._interval_s)
                next_draw = min(next_draw, now)
            if now >= next_draw:
                self._draw()
                next_draw = max(now + _LEAST_S, next_look)
            wait_s = max(0.0, min(next_look, next_draw) - time.monotonic())
            ready = {fd for fd, _ in poll.poll(wait_s * 1000)}
            if self._watch.fileno() in ready:
                self._watch.drain()
                next_look = min(next_look, now + _LEAST_S)
            if signals_fd in ready:
                self._signalled(os.read(signals_fd, 1024))
                next_draw = 0.0
            if self._terminal.keys_fd in ready:
                if not self._pressed():
                    return
                next_draw = 0.0

    def _look(self) -> None:
        self._choice.loading = self._source.read()
        if not self._choice.paused or self._job is None:
            self._job = self._source.job()

    def _draw(self) -> None:
        assert self._job is not None
        lines, self._page = screen(self._job, self._choice, *self._terminal.size())
        self._terminal.draw(lines)

    def _pressed(self) -> bool:
        """Do what the keys ask for; tell whether to go on."""
        keys = self._terminal.keys()
        for key in keys if keys is not None else ["q"]:
            if key in ("q", "Q"):
                return False
            act(self._choice, key, self._page)
        return True

    def _signalled(self, numbers: bytes) -> None:
        if signal.SIGTSTP in numbers:
            self._terminal.leave()
            before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)  # goes on here once it is continued
            signal.signal(signal.SIGTSTP, before)
            self._terminal.enter()
        elif signal.SIGCONT in numbers:
            self._terminal.enter()  # the program in the foreground meanwhile may have changed it


def act(choice: Choice, key: str, page: int) -> None:
    """Change what is chosen, as a key says; keys that mean nothing do nothing.

    Args:
        choice: what is changed.
        key: as `Terminal.keys` names it.
        page: how many ranks the screen shows.
    """
    steps = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -_ALL, "end": _ALL}
    if key in steps:
        choice.offset = max(0, choice.offset + steps[key])
    elif key in ("s", "S"):
        names = list(SORTS)
        choice.sort = names[(names.index(choice.sort) + 1) % len(names)]
        choice.offset = 0
    elif key in ("p", "P"):
        choice.paused = not choice.paused


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """Yield a descriptor that becomes readable with the numbers of signals; some end the program.

    In the main thread only.
    """
    readable, writable = socket.socketpair()
    with readable, writable:
        readable.setblocking(False)
        writable.setblocking(False)
        wakeup_before = signal.set_wakeup_fd(writable.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, _note) for number in _NEWS}
        before |= {number: signal.signal(number, _end) for number in _ENDS}
        # Ignored where a script has started it in the background; on a screen it must work.
        before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield readable.fileno()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup_before)


def _note(number: int, frame: FrameType | None) -> None:
    """Nothing: its number has arrived at the descriptor."""


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
