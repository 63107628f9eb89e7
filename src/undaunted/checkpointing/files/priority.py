"""Stand back: less of the processors and of the disk for this process than for training."""

from __future__ import annotations

import contextlib
import ctypes
import os

# By what the kernel calls the machine; others do without.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "ppc64le": 273, "s390x": 282, "riscv64": 30}
_WHO_PROCESS = 1
_CLASS_SHIFT = 13
# With "best-effort" the lowest of its eight levels.
IO_CLASSES = {"best-effort": (2 << _CLASS_SHIFT) | 7, "idle": 3 << _CLASS_SHIFT}


def check(nice: int, io_class: str | None) -> None:
    """Raise ValueError for what :func:`lower` would not understand."""
    if not -20 <= nice <= 19:
        raise ValueError(f"nice={nice}: give a number from -20 to 19")
    if io_class is not None and io_class not in IO_CLASSES:
        raise ValueError(f"io_class={io_class!r}: give one of {', '.join(IO_CLASSES)}, or None")


def lower(nice: int, io_class: str | None) -> None:
    """Set the priorities of this thread and of those it will start.

    Failure is ignored: a container may forbid it, and the files are written all the same.

    Args:
        nice: of the processors, -20 (first) to 19 (last).
        io_class: of the disk: ``best-effort`` (its lowest level), ``idle``, or None = as it is.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    number = _IOPRIO_SET.get(os.uname().machine)
    if io_class is not None and number is not None:
        libc = ctypes.CDLL(None)
        libc.syscall(
            *(ctypes.c_long(word) for word in (number, _WHO_PROCESS, 0, IO_CLASSES[io_class]))
        )
