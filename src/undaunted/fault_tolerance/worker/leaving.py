"""How a worker whose program failed ends: as always, except for the interpreter's last step.

The traceback is printed, threads are joined, atexit handlers run, streams are flushed. What is left
out is the destruction of all modules: with torch that takes 0.2 s and more, in which the restart
would wait for a process that has nothing to say any more, or for ever where a communicator cannot
be destroyed because its peers are gone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys

_exit_code: int | None = None


def failed(error: BaseException) -> bool:
    """Note how the program ended; return whether that is a failure."""
    global _exit_code  # noqa: PLW0603 - one program per process
    if isinstance(error, KeyboardInterrupt):
        return True  # the interpreter lets SIGINT end the process, after its last step
    code = error.code if isinstance(error, SystemExit) else 1
    # As the interpreter has it: None is success, a text, which it prints, means 1, and of a number
    # the system keeps the lowest eight bits.
    code = 0 if code is None else code & 0xFF if isinstance(code, int) else 1
    if code == 0:
        return False
    _exit_code = code
    return True


def leave() -> None:
    """End the process if its program failed; the last of all atexit handlers."""
    if _exit_code is None:
        if "triton" in sys.modules:
            # It prints what is left of it when the interpreter ends. The template's frozen objects
            # would be; that they are collected costs the time it costs without a template.
            gc.unfreeze()
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # as after the interpreter's own flush
            stream.flush()
    os._exit(_exit_code)
