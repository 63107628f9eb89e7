"""A launcher ends the job of Slurm in place of the batch script, whose node is lost.

With `--no-kill` Slurm keeps a job whose first node is gone, and nobody is left there who ends it or
puts it back into the queue. Design: docs/design/srun.md.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.deadline import wait_for
from undaunted.base.text import printable
from undaunted.coordinator.core.messages import Outcome
from undaunted.fault_tolerance.output.lines import TEXT
from undaunted.fault_tolerance.output.messages import append_to
from undaunted.journal.job.launches import attempts_of, launches_of
from undaunted.journal.job.summary import summarize_job
from undaunted.services.slurm.allocation import allocation
from undaunted.services.slurm.commands import SlurmError
from undaunted.services.slurm.queue import Queue, after, in_words, journals_in, of_same_program

if TYPE_CHECKING:
    from undaunted.fault_tolerance.run_config import RunConfig, Script
    from undaunted.journal.job.launches import Launch
    from undaunted.journal.job.values import JobSummary
    from undaunted.services.slurm.allocation import Allocation

_ANSWER_S = 5.0
# Slurm looks for a node that is silent every third part of its SlurmdTimeout (300 s).
_SEEN_BY_SLURM_S = 150.0
_PAUSE_S = 5.0
_APART_S, _LONGEST_S = 0.5, 10.0
_OF_A_NODE = (Outcome.PREEMPTED.value, Outcome.EXCLUDED.value)


def end_for_script(config: RunConfig, script: Script) -> None:
    """Do what `undaunted srun` would have done at the job's end, if its node is lost.

    Each launcher calls it at its end; who finds that the job has ended for Slurm does nothing.

    Args:
        config: of this launcher.
        script: the script that waits for it.
    """
    earlier, now = _launches(config)
    ends = {one.node: one.state.ended for one in now}
    own = ends.get(config.node)
    left = own is not None and own.alone and own.outcome != Outcome.TOO_FEW_NODES.value
    if own is None or left or ends.get(script.node) is not None:
        return  # the job may go on, or the script is there
    with suppress(ValueError):
        asyncio.run(
            _InPlace(config, script, allocation(os.environ, of_task=True)).end(earlier, now)
        )


class _InPlace:
    """Ends the job."""

    def __init__(self, config: RunConfig, script: Script, here: Allocation) -> None:
        self._config, self._script, self._here = config, script, here
        self._queue = Queue(here, self._say)

    async def end(self, earlier: list[Launch], now: list[Launch]) -> None:
        """Put the job back into the queue, or end it, unless that is others' to do."""
        try:
            if await self._script_answers() or not await self._is_over(now):
                return
            # One after another: the first of many ends it, the others find it ended.
            nodes = sorted(one.node for one in now if one.node != self._script.node)
            await asyncio.sleep(min(_APART_S * nodes.index(self._config.node), _LONGEST_S))
            await self._end(earlier, now)
        except SlurmError as error:
            self._say(f"the job of Slurm could not be ended: {error}; scancel {self._here.name}")

    async def _end(self, earlier: list[Launch], now: list[Launch]) -> None:
        summary = _summary(now)
        line = in_words(summary)
        await self._queue.comment(line)
        if not await self._is_there():
            return
        logs = f"output without it: {self._config.log_dir}, {self._config.launcher_log}"
        self._say(f"{line}; node {self._script.node}, which ran the batch script, is lost; {logs}")
        decided = after(summary, _summary(earlier), self._here.restarts, self._script.requeues)
        if not await self._queue.put_back(decided) and await self._is_there():
            self._say(f"Slurm is asked to end job {self._here.name}, as its script cannot")
            await self._queue.ask("scancel", self._here.name)

    async def _is_there(self) -> bool:
        """Whether the job runs for Slurm, in this start."""
        shown = await self._queue.shown()
        same = shown.get("Restarts", "0") == str(self._here.restarts)
        return shown.get("JobState") == "RUNNING" and same

    async def _script_answers(self) -> bool:
        """Whether the script's host is there: the launchers' port is open, or refused."""
        assert self._config.nodes is not None
        endpoint = next(iter(self._config.nodes.endpoints), f":{self._here.port}")
        port = int(endpoint.rpartition(":")[2])
        try:
            _, writer = await wait_for(asyncio.open_connection(self._script.node, port), _ANSWER_S)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        writer.close()
        return True

    async def _is_over(self, now: list[Launch]) -> bool:
        """Whether the job has ended on all nodes.

        Where none was told so, the others may go on: unless they have ended, too, or Slurm has lost
        their nodes.
        """
        deadline = time.monotonic() + _SEEN_BY_SLURM_S
        while not any(_was_told(one) for one in now):
            silent = {one.node for one in now if one.state.ended is None}
            if await self._queue.are_lost({self._script.node, *silent}):
                return True
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_PAUSE_S)
            _, now = _launches(self._config)
        return True

    def _say(self, text: str) -> None:
        line = TEXT.line(printable(text))
        with suppress(OSError):  # nobody reads it, most likely
            print(line, end="", file=sys.stderr, flush=True)
        for path in (self._config.launcher_log, self._script.output):
            append_to(path, self._config.node, line)


def _launches(config: RunConfig) -> tuple[list[Launch], list[Launch]]:
    """Return the launches of earlier starts of the same program, and those of this start."""
    attempts, _ = attempts_of(launches_of(journals_in(Path(config.run_dir))))
    mine = [one for one in attempts if any(each.node == config.node for each in one.launches)]
    if not mine:
        return [], []
    now = mine[-1].launches
    earlier = [one for each in attempts if each is not mine[-1] for one in each.launches]
    return of_same_program(earlier, now), now


def _was_told(launch: Launch) -> bool:
    """Whether a launcher was told that the job has ended; others leave a job that goes on."""
    end = launch.state.ended
    return end is not None and not end.alone and end.outcome not in _OF_A_NODE


def _summary(launches: list[Launch]) -> JobSummary:
    for index, one in enumerate(launches):
        one.index = index
    return summarize_job(launches)
