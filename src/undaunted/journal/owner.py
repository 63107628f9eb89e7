"""The process that writes a journal, and whether it still lives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base import machine, process
from undaunted.journal.events import JournalOpened

if TYPE_CHECKING:
    from collections.abc import Mapping

_PID_NAMESPACE = Path("/proc/self/ns/pid")


def this_process(t: int, version: str) -> JournalOpened:
    """Return the first line of a journal that this process writes.

    Args:
        t: CLOCK_MONOTONIC, nanoseconds.
        version: of undaunted.
    """
    pid = os.getpid()
    return JournalOpened(
        t=t,
        version=version,
        boot_id=_boot_id(),
        pid=pid,
        start_ticks=process.start_time(pid) or 0,
        pid_namespace=_pid_namespace(),
        slurm_step=_slurm_step(os.environ),
    )


def is_running(opened: JournalOpened) -> bool | None:
    """Tell whether the process that wrote this line still runs; None = that cannot be known here.

    It can be known on the same machine, since the same boot, and not from another container.
    """
    here = (_boot_id(), _pid_namespace())
    if not opened.start_ticks or (opened.boot_id, opened.pid_namespace) != here:
        return None
    stat = process.read_stat(opened.pid)
    return stat is not None and stat.start_time == opened.start_ticks and stat.state not in "ZX"


def _slurm_step(environ: Mapping[str, str]) -> str:
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    return f"{job}.{step}" if job.isdecimal() and step.isdecimal() else ""


def _boot_id() -> str:
    try:
        return machine.boot_id()
    except (OSError, ValueError):
        return ""


def _pid_namespace() -> int:
    try:
        return _PID_NAMESPACE.stat().st_ino
    except OSError:
        return 0
