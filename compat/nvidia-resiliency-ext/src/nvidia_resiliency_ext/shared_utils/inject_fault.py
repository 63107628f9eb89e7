"""Faults in some ranks of a job, picked by a seed; and each fault, for a thread of the program's.

What makes one fault waits ``delay`` seconds, calls ``callback`` (None = nothing), and makes it.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NoReturn

from undaunted.base import threads
from undaunted.shared_utils.inject_fault import (
    Fault,
    InjectedException,
    clear_workload_exception,
    dispatch_fault_injection,
    inject_fault,
    make_fault,
    maybe_raise_workload_exception,
    register_fault,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    _Callback = Callable[[], Any] | None


def async_raise(tid: int, exc_type: type[BaseException]) -> None:
    """Have the thread with this ``ident`` raise, as soon as it runs Python code.

    Raises:
        ValueError: there is no such thread.
    """
    if not threads.async_raise(tid, exc_type):
        raise ValueError(f"there is no thread {tid}")


def termination_signal_handler(signum: int, frame: object) -> NoReturn:  # noqa: ARG001
    """Raise `InjectedException`; for ``signal.signal``."""
    raise InjectedException(f"injected fault: signal {signum}")


def workload_exception(delay: float, callback: _Callback) -> None:
    """Have the next `maybe_raise_workload_exception` raise."""
    make_fault(Fault.WORKLOAD_EXC, delay, callback)


def async_raise_exception(tid: int, delay: float, callback: _Callback) -> None:
    """Have a thread raise `InjectedException`.

    Raises:
        ValueError: there is no such thread.
    """
    _wait(delay, callback)
    async_raise(tid, InjectedException)


def raise_gpu_error(delay: float, callback: _Callback) -> None:
    """Make an illegal access on the current CUDA device."""
    make_fault(Fault.GPU_ERROR, delay, callback)


def gpu_sleep(delay: float, device: Any, callback: _Callback) -> None:
    """Keep a CUDA device busy for ever."""
    import torch

    _wait(delay, callback)
    with torch.cuda.device(device):
        make_fault(Fault.GPU_SLEEP)


def lock_gil(delay: float, callback: _Callback) -> None:
    """Run no Python code in this process any more."""
    make_fault(Fault.LOCK_GIL, delay, callback)


def segfault(delay: float, callback: _Callback) -> None:
    """End this process by SIGSEGV."""
    make_fault(Fault.SEGFAULT, delay, callback)


def send_signal(pid: int, signal: int, delay: float, callback: _Callback) -> None:
    """Send a signal to a process.

    Raises:
        OSError: there is no such process, or it is another user's.
    """
    _wait(delay, callback)
    os.kill(pid, signal)


def abort(delay: float, callback: _Callback) -> None:
    """End this process by SIGABRT."""
    make_fault(Fault.OS_ABORT, delay, callback)


def _wait(delay: float, callback: _Callback) -> None:
    time.sleep(delay)
    if callback is not None:
        callback()


__all__ = [
    "Fault",
    "InjectedException",
    "abort",
    "async_raise",
    "async_raise_exception",
    "clear_workload_exception",
    "dispatch_fault_injection",
    "gpu_sleep",
    "inject_fault",
    "lock_gil",
    "maybe_raise_workload_exception",
    "raise_gpu_error",
    "register_fault",
    "segfault",
    "send_signal",
    "termination_signal_handler",
    "workload_exception",
]
