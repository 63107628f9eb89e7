"""Puts a job of Slurm back into its queue at the end. Design: docs/design/srun.md."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from undaunted.base.text import count, format_duration, one_line, printable
from undaunted.journal.reader import find_journals, read_journal
from undaunted.services.slurm.allocation import Next, is_away, what_next
from undaunted.services.slurm.commands import SlurmError, ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from undaunted.journal.job.launches import Launch
    from undaunted.journal.job.values import JobSummary
    from undaunted.journal.reader import Journal
    from undaunted.services.slurm.allocation import Allocation

_AWAY_S = 300.0  # how long the controller of Slurm may be away; sites restart it
_PAUSE_S = 2.0


class Queue:
    """The queue of Slurm in which the job was.

    Args:
        here: the allocation.
        say: shows a line.
    """

    def __init__(self, here: Allocation, say: Callable[[str], None]) -> None:
        self._here, self._say = here, say

    async def ask(self, *words: str, orders: Sequence[str] = ()) -> str:
        """Ask Slurm; where its controller is away, ask again until it is back.

        Raises:
            SlurmError: it refuses, or has been away for too long.
        """
        said = False
        began = time.monotonic()
        while True:
            try:
                return await ask(*words, orders=orders)
            except SlurmError as error:
                if not is_away(str(error)) or time.monotonic() > began + _AWAY_S:
                    raise
                complaint = str(error)
            if not said:
                self._say(f"{complaint}; it is asked again for up to {format_duration(_AWAY_S)}")
                said = True
            await asyncio.sleep(_PAUSE_S)

    async def shown(self) -> dict[str, str]:
        """Return what Slurm shows of the job.

        Raises:
            SlurmError: it does not.
        """
        line = await self.ask("scontrol", "--oneliner", "show", "job", self._here.name)
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    def runs(self, shown: dict[str, str]) -> bool:
        """Return whether the job runs, in this start of it."""
        same = shown.get("Restarts", "0") == str(self._here.restarts)
        return shown.get("JobState") == "RUNNING" and same

    async def comment(self, line: str) -> None:
        """Have Slurm show a line about the job; nothing depends on it."""
        with suppress(SlurmError):
            words = (f"JobId={self._here.name}", f"Comment={printable(line)}")
            await ask("scontrol", "update", *words)

    async def put_back(self, decided: Next) -> bool:
        """Put the job back into the queue if that is decided; Slurm ends this process then.

        Returns:
            Whether it is there.
        """
        if decided.why:
            self._say(decided.why)
        if not decided.again:
            return False
        try:
            return await self._put_back(decided.without)
        except SlurmError as error:
            self._say_refused(error)
            return False

    async def _put_back(self, without: str) -> bool:
        here = self._here
        about = await self.shown()
        if not self.runs(about):
            self._say(_why_ended(about))
            return False
        if about.get("BatchFlag") == "0":
            self._say("not queued again: this is no batch script; start it again yourself")
            return False
        if without:
            before = about.get("ExcNodeList", "(null)")
            without = without if before == "(null)" else f"{before},{without}"
            if problem := await self._no_room(about.get("Command", ""), without):
                nodes = count(here.nodes, "node")
                self._say(
                    f"not queued again: without {without} there are no {nodes} for it ({problem})"
                )
                return False
        which = f" without node {without}" if without else ""
        self._say(f"Slurm is asked to queue the job again{which}")  # and ends this process then
        if without:
            # Only a job in the queue can be changed, and then Slurm ends all that could: so one
            # program does both.
            change = f"update JobId={here.name} ExcNodeList={without}"
            order = self.ask("scontrol", orders=[f"requeue {here.name}", change])
        else:
            order = self.ask("scontrol", "requeue", here.name)
        try:
            await order
        except SlurmError as error:
            return await self._is_taken(error)
        return True

    async def _is_taken(self, error: SlurmError) -> bool:
        """Return whether Slurm may have queued the job again, though the order failed; say so.

        Slurm ends all processes of a job that it queues again, and the one that asked is one.
        """
        with suppress(SlurmError):
            if self.runs(await self.shown()):
                self._say_refused(error)
                return False
        self._say(
            f"Slurm may have queued the job again all the same ({error}): submit it again only if "
            f"`squeue --jobs={self._here.name}` does not show it"
        )
        return True

    def _say_refused(self, error: SlurmError) -> None:
        remedy = "a job that may be needs `#SBATCH --requeue`; " if "disabled" in str(error) else ""
        self._say(f"the job could not be queued again: {error}; {remedy}submit it again")

    async def _no_room(self, script: str, without: str) -> str:
        """Say why the job could not start without these nodes, "" = it could."""
        here = self._here
        words = [f"--partition={here.partition}"] if here.partition else []
        words += [f"--nodes={here.nodes}", f"--exclude={without}"]
        words += [script] if script and os.access(script, os.R_OK) else ["--wrap=true"]
        try:
            await ask("sbatch", "--test-only", *words)
        except SlurmError as error:
            return one_line(str(error), longest=120)
        return ""


def _why_ended(about: Mapping[str, str]) -> str:
    """Say why a job that Slurm ends by itself is not queued again here, and what to do.

    Args:
        about: what Slurm shows of the job.
    """
    state = about.get("JobState", "")
    if state == "TIMEOUT" or about.get("Reason") == "TimeLimit":
        return (
            f"not queued again: the time limit of {about.get('TimeLimit', '')} is over; with "
            "`#SBATCH --signal=TERM@300` the job saves and goes back before"
        )
    return (
        f"not queued again here: for Slurm the job is {state} already, and comes back if Slurm "
        "requeues it (not after scancel)"
    )


def journals_in(run_dir: Path) -> list[Journal]:
    """Return all journals that can be read now."""
    journals = []
    with suppress(OSError):
        for path in find_journals(run_dir):
            with suppress(OSError):
                journals.append(read_journal(path))
    return journals


def of_same_program(earlier: Iterable[Launch], now: Iterable[Launch]) -> list[Launch]:
    """Return the earlier launches of the program that was launched now.

    Another job may have had the same directory, or a script starts several programs one after
    another: how far they came says nothing of this one.
    """
    same = set(map(_program, now))
    return [one for one in earlier if _program(one) in same]


def _program(launch: Launch) -> tuple[str, ...]:
    job = launch.state.job
    return () if job is None else (job.run_id, *job.argv)


def outcome_line(summary: JobSummary) -> str:
    """Return how a job ended, in one line."""
    return f"{summary.outcome} (exit code {summary.exit_code}): {one_line(summary.reason)}"


def what_follows(summary: JobSummary, earlier: JobSummary, restarts: int, requeues: int) -> Next:
    """Decide what follows a start of a job.

    Args:
        summary: of this start.
        earlier: of all starts before.
        restarts: how often Slurm has started the job again.
        requeues: how often it may at most.
    """
    return what_next(
        summary.outcome,
        summary.reason,
        _last_iteration(summary),
        _last_iteration(earlier),
        restarts=restarts,
        requeues=requeues,
    )


def _last_iteration(summary: JobSummary) -> int | None:
    """Return the highest iteration that a rank began, None = it is not known."""
    known = [one.last_iteration for one in summary.rounds if one.last_iteration is not None]
    return max(known, default=None)
