"""Getting the user's thread out of the user's code: where it may be interrupted, and how.

Where: the `Gate` is open while the frame of `Gate.run` is on the stack. An interruption is raised
only in code *below* that frame: a late one never hits code that runs after the user's. The gate is
read from a signal handler, which may run in the middle of any of its methods: there it takes no
lock.

How: if the user's thread is the main thread, the `Interrupter` sends a real-time signal, which ends
waits in the kernel, and whose handler raises. Otherwise it sets an asynchronous exception, which
the thread raises when it executes Python code again.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from undaunted.base.threads import async_raise
from undaunted.inprocess.exception import RankShouldRestart

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from undaunted.inprocess.rank.page import Page

T = TypeVar("T")

SIGNAL = signal.SIGRTMIN + 9

# Interrupted in the middle, code of these modules may keep a lock for ever, or lose a descriptor or
# a child that it has just made (subprocess). It is left alone for `GRACE_S`.
_DELICATE = frozenset(
    {"logging", "threading", "queue", "subprocess", "importlib", "_frozen_importlib"}
)
GRACE_S = 0.02
# An interrupted import leaves half of a package behind, and every later import of it fails, in all
# later iterations. So an import is left alone for longer.
IMPORT_S = 10.0
# Code that cleans up after the interruption (finally, __exit__) is left alone for this long. So are
# finalizers (__del__), where Python would print the exception and drop it.
CLEAN_UP_S = 1.0
# Longest wait of `atomic` for an abort; if the abort hangs, the hard timeout ends the rank.
_ABORT_S = 3600.0
# Turns of a loop within which a thread raises the asynchronous exception that it has been sent.
_CHECKS = 100


class Gate:
    """The place in which the user's code of one call may be interrupted. Closed at first."""

    def __init__(self, page: Page, wake: Callable[[], None]) -> None:
        """Prepare.

        Args:
            page: shows how deep in `atomic` the user's code is.
            wake: called when an interruption that was held off may come now.
        """
        self._page = page
        self._wake = wake
        self._ident = threading.get_ident()
        self._lock = threading.Lock()
        self._marker: FrameType | None = None
        self._depth = 0  # of atomic, in all threads
        self._own_depth = 0  # in the user's thread
        self._wanted = False  # the epoch is over, see `terminate`
        self._terminating = False  # no code enters `atomic` any more
        self._raising = threading.Event()  # communication is aborted: interruptions may be raised
        self._message = ""
        self._refused_at = 0.0
        self._refused: tuple[int, int] | None = None  # frame, instruction
        self._raised_at = 0.0
        self._raised_in: list[FrameType] = []
        self._swallower: str | None = None

    # --- the user's thread ------------------------------------------------------------------------

    def reset(self) -> None:
        """Begin an epoch. The gate is closed."""
        self._wanted = self._terminating = False
        self._raising.clear()
        self._refused_at = self._raised_at = 0.0
        self._refused = None

    def run(self, body: Callable[[], T], close: Callable[[], None]) -> T:
        """Run ``body``, which may be interrupted, and return its result.

        Args:
            body: the user's code.
            close: called when the gate is shut, whatever happens.

        Raises:
            RankShouldRestart: it was interrupted, or the epoch is over already.
            BaseException: any other error of ``body``.
        """
        try:
            try:
                self._marker = sys._getframe()  # noqa: SLF001 - what it is for
                self._raise_if_over()
                return body()
            finally:
                self._shut(close)
        except RankShouldRestart:
            self._shut(close)  # an asynchronous exception has hit the shutting itself
            raise

    def _raise_if_over(self) -> None:
        """Keep the user's code from starting after an abort, which would miss its groups."""
        with self._lock:
            over = self._terminating
        if over:
            self._raising.wait(_ABORT_S)
            raise RankShouldRestart(self._message)

    def _shut(self, close: Callable[[], None]) -> None:
        with self._lock:
            self._marker = None
            self._raised_in = []
            # The function's own `atomic` sections end with it; those of other threads go on.
            self._change_depth(-self._own_depth)
            close()
            wanted = self._wanted
        if wanted:
            self._wake()

    def enter_atomic(self) -> None:
        """Hold off aborts and interruptions, until `leave_atomic` was called as often.

        Raises:
            RankShouldRestart: an interruption is under way.
        """
        with self._lock:
            if not self._terminating:
                self._change_depth(1)
                return
        self._raising.wait(_ABORT_S)
        raise RankShouldRestart(self._message)

    def leave_atomic(self) -> None:
        """Undo one `enter_atomic`."""
        with self._lock:
            self._change_depth(-1)
            wanted = self._wanted and not self._depth
        if wanted:
            self._wake()

    def _change_depth(self, by: int) -> None:
        self._depth = max(0, self._depth + by)
        if threading.get_ident() == self._ident:
            self._own_depth = max(0, self._own_depth + by)
        self._page.set_atomic(self._depth)

    def raise_if_wanted(self) -> None:
        """Raise an interruption that `atomic` has held off; for the user's thread, after it.

        Raises:
            RankShouldRestart: there is such an interruption.
        """
        if self._wanted and not self._depth and threading.get_ident() == self._ident:
            self._raising.wait(_ABORT_S)
            raise RankShouldRestart(self._message)

    # --- the watcher ------------------------------------------------------------------------------

    def terminate(self, message: str) -> bool:
        """Let no code enter `atomic` any more. False = some code is in it: try again when woken."""
        with self._lock:
            self._message = message
            self._wanted = True
            if self._depth:
                return False
            self._terminating = True
            return True

    @property
    def over(self) -> bool:
        """Return whether the epoch is being ended: an error from now on follows from that."""
        return self._terminating

    def let_raise(self) -> None:
        """Communication is aborted: from now on, the user's code may be interrupted."""
        self._raising.set()

    @property
    def must_interrupt(self) -> bool:
        """Return whether user code still runs and is to be interrupted."""
        return self._raising.is_set() and self._marker is not None

    def take_swallower(self) -> str | None:
        """Return the name of code that has caught an interruption and gone on; each only once."""
        with self._lock:
            found, self._swallower = self._swallower, None
            return found

    def while_open(self, action: Callable[[], None]) -> None:
        """Call ``action`` if user code is to be interrupted; the gate is not shut meanwhile."""
        with self._lock:
            if self.must_interrupt:
                action()

    # --- the interrupter --------------------------------------------------------------------------

    @property
    def message(self) -> str:
        """The message of interruptions."""
        return self._message

    def may_raise(self, frame: FrameType | None, handled: BaseException | None) -> bool:
        """Return whether the user's code may be interrupted now; True = the caller does it.

        Args:
            frame: the innermost frame of the user's thread.
            handled: the exception that this thread is handling.
        """
        if not self.must_interrupt or frame is None or not self._is_below(frame):
            return False
        now = time.monotonic()
        cleans_up = _comes_from_us(handled)
        if cleans_up and now < self._raised_at + CLEAN_UP_S:
            return False
        if self._is_delicate(frame, now):
            return False
        if not cleans_up:
            self._find_swallower(frame)
        self._raised_at = now
        self._raised_in = _stack(frame, self._marker)
        return True

    def _is_below(self, frame: FrameType) -> bool:
        at = frame.f_back
        while at is not None and at is not self._marker:
            at = at.f_back
        return at is not None

    def _is_delicate(self, frame: FrameType, now: float) -> bool:
        """Return whether code must be left alone: not if it waits there, or has had its time."""
        patience_s = self._patience_s(frame)
        if not patience_s:
            return False
        here = (id(frame), frame.f_lasti)
        waits = here == self._refused and patience_s == GRACE_S
        self._refused = here
        self._refused_at = self._refused_at or now
        return not waits and now < self._refused_at + patience_s

    def _patience_s(self, frame: FrameType) -> float:
        """Return for how long the running code is left alone, seconds."""
        stack = _stack(frame, self._marker)
        if any(_module(each) == "importlib._bootstrap" for each in stack):
            return IMPORT_S
        if any(map(_is_finalizer, stack)):
            return CLEAN_UP_S
        return GRACE_S if _module(frame).partition(".")[0] in _DELICATE else 0.0

    def _find_swallower(self, frame: FrameType) -> None:
        """Name the code that has caught the last interruption, if user code still runs after it.

        That is the innermost frame of the stack where it was raised that still runs; or a finalizer
        on that stack that has ended, as Python drops exceptions that leave a finalizer.
        """
        stack = _stack(frame, self._marker)
        ended = [each for each in self._raised_in if _is_finalizer(each) and each not in stack]
        common = [each for each in stack if each in self._raised_in]
        for at in (ended or common)[:1]:
            code = at.f_code
            self._swallower = f"{code.co_name} ({code.co_filename}, line {at.f_lineno})"

    def not_raised(self) -> None:
        """The last interruption that was allowed is not raised yet: no code has caught it."""
        self._raised_in = []

    @property
    def refused(self) -> bool:
        """Return whether the last interruption came at a place where code is left alone."""
        return self._refused is not None and not self._raised_at


def _comes_from_us(handled: BaseException | None) -> bool:
    """Return whether code handles an interruption: in finally, __exit__, or except."""
    while handled is not None and not isinstance(handled, RankShouldRestart):
        handled = handled.__context__
    return handled is not None


def _is_finalizer(frame: FrameType) -> bool:
    """Return whether Python drops exceptions that leave this frame."""
    return frame.f_code.co_name == "__del__" or _module(frame) == "weakref"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _stack(frame: FrameType, marker: FrameType | None) -> list[FrameType]:
    found = []
    at: FrameType | None = frame
    while at is not None and at is not marker:
        found.append(at)
        at = at.f_back
    return found


class Interrupter:
    """Interrupts the thread that has made it, for one call."""

    def __init__(self, gate: Gate, wake: Callable[[], None]) -> None:
        """Prepare.

        Args:
            gate: says where that thread may be interrupted.
            wake: called in the signal handler when the code at that place is left alone.
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
        """Give the signal back, unless the user's code has taken it. Not while `interrupt` runs."""
        if self._by_signal and signal.getsignal(SIGNAL) is self._handler:
            signal.signal(SIGNAL, signal.SIG_DFL if self._previous is None else self._previous)

    def interrupt(self) -> None:
        """Try once to interrupt, from another thread; does nothing if the gate is shut."""
        self._gate.while_open(self._send)

    def clear(self) -> None:
        """Catch an asynchronous exception that is still to come: the gate is shut.

        It is not taken back: CPython 3.11 would look for it again and again, before every call and
        in every loop, and never go on under a profiler.
        """
        try:
            for _ in range(_CHECKS):
                if not self._pending:
                    break
        except RankShouldRestart:
            pass
        self._pending = False

    def _send(self) -> None:
        if self._by_signal and signal.getsignal(SIGNAL) is self._handler:
            signal.pthread_kill(self._ident, SIGNAL)
            return
        if self._pending:
            self._gate.not_raised()
        if self._gate.may_raise(sys._current_frames().get(self._ident), self._handled()):  # noqa: SLF001
            self._pending = True
            async_raise(self._ident, self._exception())

    def _exception(self) -> type[RankShouldRestart]:
        """Return a type with the message in it: asynchronous exceptions get no arguments."""
        message = self._gate.message

        def make(error: RankShouldRestart) -> None:
            self._pending = False
            BaseException.__init__(error, message)

        return type("RankShouldRestart", (RankShouldRestart,), {"__init__": make})

    def _handled(self) -> BaseException | None:
        """Return the exception that the user's thread is handling."""
        found: Any = sys._current_exceptions().get(self._ident)  # noqa: SLF001
        handled: BaseException | None = found[1] if isinstance(found, tuple) else found
        return handled  # a tuple of three before Python 3.12

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number
        if self._gate.may_raise(frame, sys.exc_info()[1]):
            raise RankShouldRestart(self._gate.message)
        if self._gate.must_interrupt:
            self._wake()
