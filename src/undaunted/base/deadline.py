"""Calls that touch a disk which may hang."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def in_time(seconds: float, call: Callable[[], T]) -> T:
    """Return what ``call`` returns, or raise what it raises.

    The call runs in a daemon thread of its own, which is left behind when time runs out: it ends
    when the call returns, or with the process.

    Raises:
        TimeoutError: it takes longer than ``seconds``. It is an `OSError`, as others of a disk.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001 - raised in the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="undaunted-deadline", daemon=True)
    thread.start()
    thread.join(seconds)
    if results:
        return results[0]
    raise errors[0] if errors else TimeoutError(errno.ETIMEDOUT, f"no answer within {seconds:g} s")


def within(seconds: float, call: Callable[[], T], otherwise: T) -> T:
    """Return what ``call`` returns, or ``otherwise`` if that takes longer than ``seconds``.

    As `in_time`, but any exception of the call counts as ``otherwise``.
    """
    try:
        return in_time(seconds, call)
    except Exception:  # noqa: BLE001 - documented
        return otherwise
