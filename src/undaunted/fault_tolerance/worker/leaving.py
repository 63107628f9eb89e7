"""A worker whose program failed ends as always, except for the interpreter's last step.

The traceback is printed, threads are joined, atexit handlers run, streams are flushed. What is left
out is the destruction of all modules: with torch that takes 0.2 s and more, in which the restart
would wait for a process that has nothing to say any more, or for ever where a communicator cannot
be destroyed because its peers are gone.

A worker whose program has done its work goes through that step too. Native threads of gloo are
first given the time to let go of the tensors of their last collective.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from typing import Any

# A switch interval of the interpreter's lock; gloo's threads have nothing left to do if they sleep
# after so many of them, one after the other; and how long they are waited for.
_SWITCH_S = 0.005
_CALM_LOOKS = 4
_GLOO_S = 2.0

_PREEMPTED = 75

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
        if "torch" in sys.modules:
            _let_gloo_finish()
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # as after the interpreter's own flush
            stream.flush()
    ending: Any = sys.modules.get("undaunted.base.ending")
    # Of all codes of failures this one alone is taken for a good end.
    if _exit_code == _PREEMPTED and ending is not None and ending.failed:
        os._exit(ending.EXIT_CODE)
    os._exit(_exit_code)


def _let_gloo_finish() -> None:
    """Give threads of gloo that carry out collectives the time to let go of tensors.

    Such a thread drops its references to the tensors of a collective after the caller has gone on,
    and needs the interpreter's lock for it. If the interpreter has begun its last step by then, the
    thread is ended inside of a destructor, and the process dies of SIGABRT ("terminate called
    without an active exception") although its program has done its work.

    While this sleeps the lock is free: a thread that waits for it is ready to run, and so not seen
    asleep, however long a busy machine lets it wait for a processor.
    """
    from undaunted.base import process  # with torch, the rank has it already

    until = time.monotonic() + _GLOO_S
    calm = 0
    while (threads := _gloo_threads()) and calm < _CALM_LOOKS and time.monotonic() < until:
        time.sleep(_SWITCH_S)
        # "" = the thread has ended.
        calm = calm + 1 if {process.state(thread) for thread in threads} <= {"S", ""} else 0


def _gloo_threads() -> list[int]:
    from undaunted.base import process

    me = os.getpid()
    all_threads = process.threads(me)
    named = [each for each in all_threads if process.thread_name(me, each) == "pt_gloo_runloop"]
    distributed: Any = sys.modules.get("torch.distributed")
    if named or not (distributed and distributed.is_available() and distributed.is_initialized()):
        return named
    return [each for each in all_threads if each != me]  # torch 2.8 names none
