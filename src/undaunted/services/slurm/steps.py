"""Launchers of other nodes that still run: Slurm knows of steps that have ended."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from undaunted.journal import owner

if TYPE_CHECKING:
    from undaunted.journal.events import JournalOpened

_DEADLINE_S = 5.0


def is_running(opened: JournalOpened) -> bool | None:
    """Tell whether the process that wrote this line still runs; None = that cannot be known here.

    Of a process on another machine it can be known if it was a task of a step of this very job of
    Slurm, and the step has ended. Never raises; asks Slurm once in the life of this process.
    """
    known = owner.is_running(opened)
    job, _, step = opened.slurm_step.partition(".")
    if known is not None or not job or job != os.environ.get("SLURM_JOB_ID"):
        return known
    from undaunted.services.slurm.allocation import is_task

    if not is_task({"SLURM_STEP_ID": step}):  # the batch script itself: no step that is listed
        return None
    left = _steps()
    return False if left is not None and step not in left else None


@functools.cache
def _steps() -> frozenset[str] | None:
    """Return the numbers of the steps of this job that have not ended, None = not known."""
    import asyncio  # all of this takes longer to import than most reports take

    from undaunted.base.deadline import wait_for
    from undaunted.services.slurm.allocation import allocation
    from undaunted.services.slurm.commands import SlurmError, ask

    try:
        name = allocation(os.environ, of_task=True).name
        words = ("--noheader", "--steps", f"--jobs={name}", "--format=%i")
        listed = asyncio.run(wait_for(ask("squeue", *words), _DEADLINE_S))
    except (ValueError, SlurmError, TimeoutError):
        return None
    return frozenset(line.strip().rpartition(".")[2] for line in listed.splitlines())
