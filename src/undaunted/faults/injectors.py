"""Makes faults in the calling process, one function per kind.

None of them harms the machine: memory exhaustion is bounded by a limit of the process itself, and
native crashes leave no core file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from undaunted.faults import calling, gradients, saved_state, torn_write
from undaunted.faults.plan import HOWS, check_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from undaunted.faults.plan import Kind

_FOREVER_SLICE_S = 3600.0
# How much more the process may take before `oom` ends in MemoryError: enough for any allocation of
# other threads meanwhile, and never touched, so that the machine does not feel it.
_OOM_HEADROOM_BYTES = 256 << 20
# So large that malloc gets each from the kernel, zeroed: it is neither touched nor comes out of
# memory the process had freed.
_OOM_CHUNK_BYTES = 64 << 20
# pthread_mutex_t is at most 48 bytes on Linux; zeroed memory is an unlocked mutex.
_MUTEX_BYTES = 64


class InjectedError(RuntimeError):
    """The exception of the fault ``exception``."""

    __module__ = "undaunted.faults"  # where programs import it from; shown in tracebacks


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


PAUSE_S = 0.2


def inject(
    kind: Kind,
    *,
    seconds: float | None = None,
    code: int = 1,
    size: int | None = None,
    how: str | None = None,
) -> None:
    """Make a fault here and now. Many kinds end the process, or the caller with an exception.

    Args:
        kind: ``exception``, ``sigkill``, ``sigterm``, ``sigstop``, ``segfault``, ``abort``; ``gil``
            (blocks in C code that keeps the interpreter lock), ``sleep`` (hangs in Python code);
            ``oom`` (takes memory until a limit of the process ends it with MemoryError), ``exit``;
            ``slow`` (one pause), ``nan`` (spoils the gradients of the next update);
            ``wrong-result``, ``wrong-result-always`` (one bit of a gradient in the next backward
            pass, in each); ``deadline`` (a session gets notice that its time is nearly over: all
            ranks stop); ``torn-write`` (SIGXFSZ in the middle of the next large write);
            ``bad-save`` (the next model state that the program takes is bad; SIGKILL when it takes
            one after that); ``call`` (waits until the listener at ``UNDAUNTED_NEMESIS`` makes the
            fault).
        seconds: how long ``sleep`` and ``gil`` last, None (the default) means for ever; how long
            the pause of ``slow`` is, 0.2 by default.
        code: exit code of ``exit``.
        size: bytes that ``torn-write`` leaves of the file, 65536 by default.
        how: what is bad of ``bad-save``: ``nan`` (the default), ``copy`` (the highest bit of an
            exponent), ``replica`` (a sign).

    Raises:
        FaultPlanError: there is no such kind.
        InjectedError: kind ``exception``.
        MemoryError: kind ``oom``.
        SystemExit: kind ``exit``.
    """
    check_kind(kind)
    makers: dict[Kind, Callable[[], None]] = {
        "exception": _raise,
        "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "sigterm": lambda: os.kill(os.getpid(), signal.SIGTERM),
        "sigstop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "segfault": _segfault,
        "abort": _abort,
        "gil": lambda: _hold_gil(seconds),
        "sleep": lambda: _sleep(seconds),
        "oom": _exhaust_memory,
        "exit": lambda: sys.exit(code),
        "slow": lambda: time.sleep(PAUSE_S if seconds is None else seconds),
        "nan": gradients.spoil_next_update,
        "wrong-result": lambda: gradients.flip_a_bit(always=False),
        "wrong-result-always": lambda: gradients.flip_a_bit(always=True),
        "deadline": _near_deadline,
        "torn-write": lambda: _tear_next_write(size),
        "bad-save": lambda: saved_state.spoil(how or HOWS[0]),
        "call": lambda: calling.call("call", rank=int(os.environ.get("RANK", "0")), iteration=-1),
    }
    makers[kind]()


def _raise() -> NoReturn:
    raise InjectedError("injected fault: exception")


def _segfault() -> None:
    _no_core_file()
    ctypes.string_at(0)


def _abort() -> None:
    _no_core_file()
    os.abort()


def _near_deadline() -> None:
    # Not above: programs that inject something need not be watched.
    from undaunted.progress.writer import current_writer

    page = current_writer()
    if page.asks:
        page.want_stop("deadline")
    else:
        print("undaunted: no session of this rank asks whether to stop", file=sys.stderr)


def _tear_next_write(size: int | None) -> None:
    _no_core_file()
    torn_write.arm(torn_write.BYTES if size is None else size)


def _no_core_file() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _sleep(seconds: float | None) -> None:
    if seconds is not None:
        time.sleep(seconds)
        return
    while True:
        time.sleep(_FOREVER_SLICE_S)


def _hold_gil(seconds: float | None) -> None:
    """Wait for a mutex this thread holds, called in a way that keeps the interpreter lock.

    Waiting for a mutex, unlike sleeping, does not end when a signal handler has run.
    """
    libc = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(_MUTEX_BYTES)
    libc.pthread_mutex_lock(mutex)
    if seconds is None:
        libc.pthread_mutex_lock(mutex)
        return
    until_ns = time.time_ns() + int(seconds * 1e9)  # the function wants CLOCK_REALTIME
    deadline = _Timespec(until_ns // 10**9, until_ns % 10**9)
    libc.pthread_mutex_timedlock(mutex, ctypes.byref(deadline))


def _exhaust_memory() -> NoReturn:
    hold: list[bytes] = []
    with _address_space_limit(_OOM_HEADROOM_BYTES):
        try:
            for _ in range(_OOM_HEADROOM_BYTES // _OOM_CHUNK_BYTES + 1):
                hold.append(bytes(_OOM_CHUNK_BYTES))  # noqa: PERF401 - keep what was taken
        finally:
            hold.clear()
    raise MemoryError("injected fault: oom (this system does not enforce RLIMIT_AS)")


@contextlib.contextmanager
def _address_space_limit(headroom: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _address_space() + headroom
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    return int(pages) * resource.getpagesize()
