"""Calls of a store that end in time, whatever the store does.

A torch store has no time limit of its own once its server stands still: it waits for the server's
answer. So its calls are made in a thread, and when time is up its connection is shut down, which
ends the thread.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from undaunted.checkpointing.errors import SaveError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

ABORTED = "the agreement between the ranks was given up"


class AbortedError(SaveError):
    """The wait was given up by this process itself."""


class TimedOutError(SaveError):
    """The store did not answer in time."""


class Bounded:
    """One call at a time.

    Attributes:
        aborted: see `abort`.
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        """Args: what has a call in progress fail, from another thread."""
        self._interrupt = interrupt
        self.aborted = False
        self._lock = threading.Lock()
        self._done: threading.Event | None = None

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Return what the function returns, or raise what it raises.

        Raises:
            TimedOutError: it did not return in time.
            AbortedError: see :meth:`abort`.
        """
        done = threading.Event()
        results: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(function())
            except Exception as error:  # noqa: BLE001 - raised in the caller
                errors.append(error)
            finally:
                done.set()

        with self._lock:
            if self.aborted:
                raise AbortedError(ABORTED)
            self._done = done
        thread = threading.Thread(target=run, name="undaunted-agreement", daemon=True)
        thread.start()
        try:
            in_time = done.wait(timeout_s)
        except BaseException:
            self._interrupt()
            raise
        if self.aborted:
            raise AbortedError(ABORTED)
        if not in_time:
            self._interrupt()
            raise TimedOutError(f"no answer within {timeout_s:g} s")
        thread.join(timeout_s)  # its last instructions
        if errors:
            raise errors[0]
        return results[0]

    def abort(self) -> None:
        """Have the call in progress, and all later ones, raise `AbortedError`."""
        with self._lock:
            self.aborted = True
            done = self._done
        if done is not None and not done.is_set():
            self._interrupt()
            done.set()
