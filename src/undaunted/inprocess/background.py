"""Threads that call into torch, and are waited for at the end of the process.

The interpreter ends a daemon thread when that next wants to run Python code. In the middle of
torch's code this ends the process: "terminate called without an active exception", SIGABRT. Any
other thread, blocked in a collective that cannot be aborted, would keep the process for ever.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# All of them together, at the end of the process.
_LONGEST_S = 5.0

_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def start(run: Callable[[], object], name: str) -> threading.Thread:
    """Run something in a thread of its own, called ``undaunted-NAME``."""
    thread = threading.Thread(target=run, name=f"undaunted-{name}", daemon=True)
    _started.add(thread)
    thread.start()
    return thread


def settle(timeout_s: float = _LONGEST_S) -> None:
    """Wait for all that were started, ``timeout_s`` at most; registered for the end."""
    deadline = time.monotonic() + timeout_s
    for thread in list(_started):
        thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(settle)
