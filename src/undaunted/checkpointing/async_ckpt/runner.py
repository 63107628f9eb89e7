"""Runs the functions of asynchronous saves one after the other, on a thread beside training."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from undaunted.checkpointing.errors import SaveError

if TYPE_CHECKING:
    from collections.abc import Callable

WAITING_AT_MOST = 16
EXIT_GRACE_S = 5.0

_runners: weakref.WeakSet[Runner] = weakref.WeakSet()


class Call:
    """One function on its way: waiting, running, done or given up.

    Attributes:
        error: what it has failed with, once it is over.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self._function: Callable[[], Any] | None = function
        self._lock = threading.Lock()
        self._over = threading.Event()

    @classmethod
    def failed(cls, error: BaseException) -> Call:
        """Return one that has failed before it began."""
        call = cls(lambda: None)
        call._end(error)
        return call

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self._over.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; False when it has not after ``timeout_s``."""
        return self._over.wait(timeout_s)

    def give_up(self, why: str) -> None:
        """Count as failed, unless it has ended; what the function still does is ignored.

        A function with an attribute ``cancel`` is asked to end.
        """
        function = self._function
        if self._end(SaveError(why)) and hasattr(function, "cancel"):
            function.cancel()  # type: ignore[union-attr]  # mypy does not know hasattr

    def run(self) -> None:
        """Run the function, unless it was given up before."""
        function = self._function
        if function is None:
            return
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised where the save is finalized
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> bool:
        with self._lock:
            if self.over:
                return False
            self.error = error
            self._function = None  # releases what it holds
            self._over.set()
            return True


class Runner:
    """A queue of at most `WAITING_AT_MOST` functions and the thread that runs them.

    The thread is there only while there is something to do, and is a daemon: the end of the
    interpreter waits for the function that runs `EXIT_GRACE_S` at most.
    """

    def __init__(self) -> None:
        self._waiting: deque[Call] = deque()
        self._running: Call | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        _runners.add(self)

    def submit(self, function: Callable[[], Any], timeout_s: float) -> Call:
        """Have a function run after those before it.

        Raises:
            SaveError: the queue has been full for ``timeout_s``.
        """
        call = Call(function)
        with self._changed:
            if not self._changed.wait_for(
                lambda: len(self._waiting) < WAITING_AT_MOST, timeout=timeout_s
            ):
                raise SaveError(
                    f"{WAITING_AT_MOST} saves wait to be written and none of them has begun within"
                    f" {timeout_s:g} s: save less often, or look at the storage"
                )
            self._waiting.append(call)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="undaunted-async-save", daemon=True
                )
                self._thread.start()
        return call

    def abandon(self, why: str) -> int:
        """Give up everything that waits or runs, and return how many; waits for nothing."""
        with self._changed:
            calls = [*self._waiting, *([self._running] if self._running else [])]
            self._waiting.clear()
            self._changed.notify_all()
        for call in calls:
            call.give_up(why)
        return len(calls)

    def join(self, timeout_s: float) -> bool:
        """Wait until nothing waits or runs; False when that takes longer than ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout=timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._running = self._waiting.popleft() if self._waiting else None
                if self._running is None:
                    self._thread = None
                self._changed.notify_all()
                if self._running is None:
                    return
            self._running.run()


def _at_exit() -> None:
    runners = list(_runners)
    for runner in runners:
        runner.abandon("the process has ended")
    for runner in runners:
        runner.join(EXIT_GRACE_S / len(runners))


atexit.register(_at_exit)
