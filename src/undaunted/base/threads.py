"""Threads that call torch, and an exception in another thread.

Threads of `start` are waited for at the end of the process. At that time the interpreter ends every
daemon thread that wants to run Python code; in the middle of torch's code this ends the process:
"terminate called without an active exception", SIGABRT. A thread that is no daemon, blocked in a
collective that cannot be aborted, would keep the process for ever.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Longest wait for all of them together, at the end of the process.
_LONGEST_S = 5.0

_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def start(run: Callable[[], object], name: str) -> threading.Thread:
    """Call ``run`` in another thread, with the name ``undaunted-NAME``."""
    thread = threading.Thread(target=run, name=f"undaunted-{name}", daemon=True)
    _started.add(thread)
    thread.start()
    return thread


def settle(timeout_s: float = _LONGEST_S) -> None:
    """Wait for all threads of `start`, ``timeout_s`` at most; also runs at exit."""
    deadline = time.monotonic() + timeout_s
    for thread in list(_started):
        thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(settle)


def async_raise(ident: int, exception: type[BaseException]) -> bool:
    """Have a thread raise ``exception()``; a wait inside the kernel goes on until it ends.

    Args:
        ident: of the thread, as ``threading.get_ident`` returns it there.
        exception: its class.

    Returns:
        Whether there is such a thread.
    """
    raised = ctypes.py_object(exception)
    return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), raised))
