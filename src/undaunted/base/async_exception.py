"""An exception that another thread raises, as soon as it runs Python code."""

from __future__ import annotations

import ctypes


def async_raise(ident: int, exception: type[BaseException] | None) -> bool:
    """Have a thread raise ``exception()``; a wait inside the kernel goes on until it ends.

    Args:
        ident: of the thread, as ``threading.get_ident`` returns it there.
        exception: its class; None = take back one that has not been raised yet.

    Returns:
        Whether there is such a thread.
    """
    raised = ctypes.py_object() if exception is None else ctypes.py_object(exception)
    return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), raised))
