"""Signals that mean to stop: noted, and nothing else done in their handlers."""

from __future__ import annotations

import multiprocessing.util
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from undaunted.base import process, shield
from undaunted.base.signals import SAME_S, SPREAD_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_END_S = 2.0  # for workers to end by SIGTERM
_at_exit = 0  # process that ends its workers when it ends


class Signals:
    """Handlers of signals, in the place of others which come back.

    Args:
        names: such as ``SIGTERM``, ``TERM`` or ``signal.SIGTERM``.
        first: called by the handler of the first signal.

    Attributes:
        hurry: a second one has come.
        heard: how many have come.
    """

    def __init__(self, names: Sequence[str | int], first: Callable[[], None]) -> None:
        self.hurry = False
        self.heard = 0
        self._numbers = [signal_number(name) for name in names]
        self._first = first
        self._before: dict[int, Any] = {}
        self._owner = os.getpid()
        self._last = 0.0
        self._stopped_at: float | None = None

    def install(self) -> bool:
        """Begin; return False if that is not possible, since this is not the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return not self._numbers
        for number in self._numbers:
            before = signal.signal(number, self._handle)
            self._before[number] = signal.SIG_DFL if before is None else before
        if self._numbers:
            shield.begin(self._numbers)
            _end_workers_at_exit()
        return True

    def restore(self) -> None:
        """Put back the handlers from before. A handler that somebody has set since then stays."""
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)

    def stopped(self) -> None:
        """Put them back later: what comes within moments of the stop means the same stop.

        A scheduler signals all ranks, and this one perhaps when it has saved.
        """
        self._stopped_at = time.monotonic()

    def _handle(self, number: int, _frame: object) -> None:
        at, child = self._stopped_at, os.getpid() != self._owner
        if at is not None and not child and time.monotonic() - at < SPREAD_S:
            return
        if at is not None or child:  # as it would be without a session
            signal.signal(number, self._before[number])
            os.kill(os.getpid(), number)
            return
        self.heard += 1
        now = time.monotonic()
        if not self._last:
            self._first()
        elif now - self._last > SAME_S:
            self.hurry = True
            self.restore()
        self._last = now


def ignore_stop_signals(_worker: int = 0) -> None:
    """Let a process live until its parent has saved: for ``worker_init_fn`` of a data loader.

    It is needed only on processors other than x86-64 and AArch64, if a scheduler sends the signal
    to all processes. The loader ends its workers in another way.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _end_workers_at_exit() -> None:
    """Have workers that live on after SIGTERM not keep this process, which waits for them."""
    global _at_exit  # noqa: PLW0603 - one for the process
    if _at_exit != os.getpid():
        _at_exit = os.getpid()
        # After all else at exit, right before `multiprocessing` sends SIGTERM, and waits for ever.
        multiprocessing.util.Finalize(None, _end_workers, exitpriority=0)


def _end_workers() -> None:
    """End the daemons among the children; at once where they ignore SIGTERM.

    torch's handler of SIGCHLD raises when a worker of a loader is killed: it is put back before.
    """
    workers = [one for one in multiprocessing.active_children() if one.daemon]
    if workers and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for worker in workers:
        ignores = process.ignores(worker.pid or 0, signal.SIGTERM)
        (worker.kill if ignores else worker.terminate)()
    deadline = time.monotonic() + _END_S
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
        if worker.is_alive():
            worker.kill()


def signal_number(name: str | int) -> int:
    """Return the number of a signal, given its name or number.

    Raises:
        ValueError: there is no such one, or it cannot be handled.
    """
    number: object = None
    if isinstance(name, str):
        number = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
    elif name in {*signal.Signals}:
        number = signal.Signals(name)
    if not isinstance(number, signal.Signals) or number in (signal.SIGKILL, signal.SIGSTOP):
        raise ValueError(f"{name!r} is no signal that can be handled; give SIGTERM, for example")
    return int(number)
