"""Ending processes that are not ours to wait for: SIGTERM, some time, SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from undaunted.base.process import open_pidfd, signal_pidfd, wait_pidfd

if TYPE_CHECKING:
    from collections.abc import Iterable

_KILLED_S = 5.0  # for the kernel to end a process that was killed


def end(pids: Iterable[int], grace_s: float) -> list[int]:
    """End processes, all of them at once.

    Args:
        pids: of the processes.
        grace_s: seconds between SIGTERM and SIGKILL.

    Returns:
        Pids of those that needed SIGKILL.
    """
    with contextlib.ExitStack() as closing:
        found: dict[int, int] = {}
        for pid in pids:
            if (pidfd := open_pidfd(pid)) is not None:
                closing.callback(os.close, pidfd)
                found[pid] = pidfd
        for pidfd in found.values():
            for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped one hears no SIGTERM
                signal_pidfd(pidfd, number)
        killed = _running(found, grace_s)
        for pidfd in killed.values():
            signal_pidfd(pidfd, signal.SIGKILL)
        _running(killed, _KILLED_S)
        return list(killed)


def _running(found: dict[int, int], timeout_s: float) -> dict[int, int]:
    """Wait for the ends of processes, for so long together; return those that run on."""
    deadline = time.monotonic() + timeout_s
    return {
        pid: pidfd
        for pid, pidfd in found.items()
        if not wait_pidfd(pidfd, max(0.0, deadline - time.monotonic()))
    }
