"""Getting the user's thread out of the user's code.

By a real-time signal where that is the main thread: its handler raises there, and whatever the
thread waits for in the kernel is interrupted. By an asynchronous exception otherwise, which the
thread sees when it executes Python code again.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.monitor_thread import RankShouldRestart

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from undaunted.inprocess.rank.gate import Gate

SIGNAL = signal.SIGRTMIN + 9


class Interrupter:
    """Of the thread that makes it, for one call."""

    def __init__(self, gate: Gate, wake: Callable[[], None]) -> None:
        """Prepare.

        Args:
            gate: says where that thread may be interrupted.
            wake: called in the signal handler when it is refused at the place where it came.
        """
        self._gate = gate
        self._wake = wake
        self._ident = threading.get_ident()
        self._by_signal = threading.current_thread() is threading.main_thread()
        self._handler = self._on_signal
        self._previous: Any = None
        self._pending = False  # an asynchronous exception that was not raised yet

    def install(self) -> None:
        """Take the signal, if this is the main thread."""
        if self._by_signal:
            self._previous = signal.signal(SIGNAL, self._handler)

    def remove(self) -> None:
        """Give the signal back, unless the user's code has taken it. Nobody may interrupt now."""
        if self._by_signal and signal.getsignal(SIGNAL) is self._handler:
            signal.signal(SIGNAL, signal.SIG_DFL if self._previous is None else self._previous)

    def interrupt(self) -> None:
        """Try it once, from another thread; nothing happens if the gate is shut."""
        self._gate.while_open(self._send)

    def clear(self) -> None:
        """The gate is shut: nothing that was sent may arrive any more."""
        _raise_in(self._ident, None)
        self._pending = False

    def _send(self) -> None:
        if self._by_signal and signal.getsignal(SIGNAL) is self._handler:
            signal.pthread_kill(self._ident, SIGNAL)
            return
        if self._pending:
            self._gate.not_raised()
        if self._gate.may_raise(sys._current_frames().get(self._ident), self._handled()):  # noqa: SLF001
            self._pending = True
            _raise_in(self._ident, self._exception())

    def _exception(self) -> type[RankShouldRestart]:
        """Asynchronous exceptions are raised by their type, and made without arguments."""
        message = self._gate.message

        def make(error: RankShouldRestart) -> None:
            self._pending = False
            BaseException.__init__(error, message)

        return type("RankShouldRestart", (RankShouldRestart,), {"__init__": make})

    def _handled(self) -> BaseException | None:
        """Return what the user's thread is handling."""
        found: Any = sys._current_exceptions().get(self._ident)  # noqa: SLF001
        handled: BaseException | None = found[1] if isinstance(found, tuple) else found
        return handled  # a tuple of three before Python 3.11

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number
        if self._gate.may_raise(frame, sys.exc_info()[1]):
            raise RankShouldRestart(self._gate.message)
        if self._gate.must_interrupt:
            self._wake()


def _raise_in(ident: int, exception: type[BaseException] | None) -> None:
    raised = ctypes.py_object() if exception is None else ctypes.py_object(exception)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), raised)
