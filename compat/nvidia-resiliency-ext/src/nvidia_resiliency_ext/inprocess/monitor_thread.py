"""The exception that takes a rank out of the function, and how threads are made to raise."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING

from nvidia_resiliency_ext.shared_utils import inject_fault
from undaunted.base import threads
from undaunted.inprocess.exception import RankShouldRestart as RankShouldRestart

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOMENT_S = 0.05  # for a finalizer to be left, also on a machine with much to do


def async_raise(
    tid: int, exc_type: type[BaseException], event: threading.Event | None = None
) -> None:
    """Have a thread raise, as soon as it runs Python code.

    Args:
        tid: its ``ident``.
        exc_type: class of the exception.
        event: waited for before.

    Raises:
        ValueError: there is no such thread.
    """
    if event is not None:
        event.wait()
    inject_fault.async_raise(tid, exc_type)


def delayed_async_raise(tid: int, exc_type: type[BaseException]) -> None:
    """Do as `async_raise` a moment later: the thread may be where what it raises is dropped."""
    timer = threading.Timer(_MOMENT_S, threads.async_raise, (tid, exc_type))
    timer.daemon = True
    timer.start()


@contextlib.contextmanager
def reraise_if_unraisable(exc_type: type[BaseException]) -> Iterator[None]:
    """Have an exception that Python drops, in a finalizer say, raised once more in its thread.

    Within a ``with`` block, or as a decorator; others are dropped as before.

    Args:
        exc_type: class of the exception.
    """
    before = sys.unraisablehook

    def again(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, exc_type):
            delayed_async_raise(threading.get_ident(), unraisable.exc_type)
        else:
            before(unraisable)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


def async_abort_main_thread(msg: str | None = None) -> None:
    """Have the main thread raise `RankShouldRestart`, as soon as it runs Python code.

    Args:
        msg: its message.
    """

    class Aborted(RankShouldRestart):
        """With the message in its type: asynchronous exceptions get no arguments."""

        def __init__(self) -> None:
            super().__init__(*(() if msg is None else (msg,)))

    async_raise(threading.main_thread().ident or 0, Aborted)
