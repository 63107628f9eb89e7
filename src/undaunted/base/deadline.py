"""Calls that touch a disk which may hang."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T], otherwise: T) -> T:
    """Return what ``call`` returns, or ``otherwise`` if that takes longer than ``seconds``.

    The call runs in a daemon thread of its own, which is left behind when time runs out: it ends
    when the call returns, or with the process. Exceptions of the call count as ``otherwise``.
    """
    results: list[T] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception:  # noqa: BLE001 - documented
            return

    thread = threading.Thread(target=run, name="undaunted-deadline", daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else otherwise
