"""A launcher ends the job of Slurm in place of the batch script, whose node is lost.

With `--no-kill` Slurm keeps a job whose first node is gone, and nobody is left there who ends it or
puts it back into the queue. Design: docs/design/srun.md.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.deadline import in_time, wait_for, within
from undaunted.base.text import one_line, printable
from undaunted.fault_tolerance.output.lines import TEXT
from undaunted.fault_tolerance.output.messages import append_to
from undaunted.journal.job.launches import attempts_of, launches_of
from undaunted.journal.job.summary import FOR_ALL, summarize_job
from undaunted.services.slurm.allocation import allocation, node_names
from undaunted.services.slurm.commands import SlurmError
from undaunted.services.slurm.queue import (
    Queue,
    journals_in,
    of_same_program,
    outcome_line,
    what_follows,
)

if TYPE_CHECKING:
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.journal.job.launches import Launch
    from undaunted.journal.job.values import JobSummary
    from undaunted.services.slurm.allocation import Allocation

_ANSWER_S = 5.0
_DISK_S = 30.0
# Slurm notices the loss of a node within its SlurmdTimeout (300 s), and launchers have waited for
# the coordinator as long before.
_SEEN_BY_SLURM_S = 150.0
_PAUSE_S = 5.0
_SHOWN_S = 1.0
_APART_S, _LONGEST_S = 0.5, 10.0


def end_for_script(config: RunConfig) -> None:
    """Do what `undaunted srun` would have done at the job's end, if its node is lost.

    Called by each launcher at its end if the script's node may be lost; who finds that the job has
    ended for Slurm does nothing. Never raises; SIGINT and SIGTERM end it.
    """
    say = partial(_say, config)
    try:
        here = allocation(os.environ, of_task=True)
        asyncio.run(_InPlace(config, here).end())
    except asyncio.CancelledError:  # by Slurm, if another launcher has ended the job meanwhile
        if _still_runs(config, here):
            say("the job of Slurm was not ended, as a signal came; scancel does it")
    except Exception as error:  # noqa: BLE001 - the exit code is the job's, whatever happens here
        what = one_line(f"{type(error).__name__}: {error}", longest=300)
        job = os.environ.get("SLURM_JOB_ID", "")
        say(f"the job of Slurm could not be ended in place of its script ({what}): scancel {job}")


class _InPlace:
    """Ends the job."""

    def __init__(self, config: RunConfig, here: Allocation) -> None:
        assert config.script is not None
        self._config, self._script, self._here = config, config.script, here
        self._say = partial(_say, config)
        self._queue = Queue(here, self._say)

    async def end(self) -> None:
        """Put the job back into the queue, or end it, unless that is others' to do."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        answers = await self._answer()
        if answers == "yes":
            return
        # One after another: the first of many ends it, the others find it ended.
        nodes = [one for one in node_names(self._here.node_list) if one != self._script.node]
        place = nodes.index(self._config.node) if self._config.node in nodes else len(nodes)
        await asyncio.sleep(place * min(_APART_S, _LONGEST_S / max(1, len(nodes))))
        deadline = time.monotonic() + _SEEN_BY_SLURM_S
        while True:
            shown = await self._queue.shown()
            left = set(node_names(shown.get("NodeList", "")))
            gone = self._script.node not in left  # for Slurm, for good
            if not self._queue.runs(shown) or (answers == "refused" and not gone):
                return
            earlier, now = in_time(_DISK_S, partial(_launches, self._config))
            if any(one.state.ended is not None for one in now if one.node == self._script.node):
                return  # the script was there
            late = time.monotonic() > deadline
            if _is_over(now, self._script.node, left - (_dropped(now) if late else set())):
                await self._end(earlier, now)
                return
            if late:
                silent = {one.node for one in now if one.state.ended is None} & left
                others = sorted(silent - {self._script.node})
                why = f"{', '.join(others)} may go on" if others else "Slurm does not say so"
                self._say(
                    f"node {self._script.node}, which ran the batch script, may be lost, but "
                    f"{why}: scancel {self._here.name} ends the job"
                )
                return
            await asyncio.sleep(_PAUSE_S)

    async def _end(self, earlier: list[Launch], now: list[Launch]) -> None:
        summary = _summary(now)
        line = outcome_line(summary)
        await self._queue.comment(line)
        if not self._queue.runs(await self._queue.shown()):
            return
        logs = f"output without it: {self._config.log_dir}, {self._config.launcher_log}"
        self._say(f"{line}; node {self._script.node}, which ran the batch script, is lost; {logs}")
        restarts, requeues = self._here.restarts, self._script.requeues
        decided = what_follows(summary, _summary(earlier), restarts, requeues)
        back = await self._queue.put_back(decided)
        if not back and self._queue.runs(await self._queue.shown()):
            self._say(f"Slurm is asked to end job {self._here.name}, as its script cannot")
            await self._queue.ask("scancel", "--state=RUNNING", self._here.name)

    async def _answer(self) -> str:
        """Ask the script's host at the port of the launchers: ``yes``, ``refused``, or ``no``."""
        assert self._config.nodes is not None
        endpoint = next(iter(self._config.nodes.endpoints), f":{self._here.port}")
        port = int(endpoint.rpartition(":")[2])
        try:
            _, writer = await wait_for(asyncio.open_connection(self._script.node, port), _ANSWER_S)
        except ConnectionError:  # it may have been started again since
            return "refused"
        except OSError:
            return "no"
        writer.close()
        return "yes"


def _still_runs(config: RunConfig, here: Allocation) -> bool:
    """Return whether Slurm runs the job, as far as it answers."""
    queue = Queue(here, partial(_say, config))

    async def runs() -> bool:
        return queue.runs(await wait_for(queue.shown(), _ANSWER_S))

    try:
        return asyncio.run(runs())
    except (SlurmError, OSError, asyncio.CancelledError):
        return True


def _is_over(now: list[Launch], script: str, left: set[str]) -> bool:
    """Return whether the job has ended on all nodes, where the script's node does not answer.

    It has if some launcher was told an end that holds for all. Else it may go on elsewhere: unless
    all have ended, or are lost for Slurm; that the script's node is, Slurm or an order must say.

    Args:
        now: launches of this start.
        script: node of the script.
        left: nodes that Slurm still counts as the job's.
    """
    ends = [one.state.ended for one in now if one.state.ended is not None]
    told = [end.outcome for end in ends if not end.alone]
    if any(outcome in _OF_THE_JOB for outcome in told):
        return True
    silent = {one.node for one in now if one.state.ended is None} - {script}
    return bool(ends) and not silent & left and (bool(told) or script not in left)


def _dropped(now: list[Launch]) -> set[str]:
    """Return nodes that were replaced, and whose launchers have not said an end since.

    They were killed: a launcher that lives hears of the end, or gives up before this is asked.
    """
    last = max((number for one in now for number in one.state.rounds), default=-1)
    silent = [one for one in now if one.state.ended is None and one.state.rounds]
    return {one.node for one in silent if not one.ranks(last)}


_OF_THE_JOB = (*FOR_ALL, "failed", "too_few_nodes")


def _launches(config: RunConfig) -> tuple[list[Launch], list[Launch]]:
    """Return the launches of earlier starts of the same program, and those of this start."""
    attempts, _ = attempts_of(launches_of(journals_in(Path(config.run_dir))))
    mine = [one for one in attempts if any(each.node == config.node for each in one.launches)]
    if not mine:
        return [], []
    now = mine[-1].launches
    earlier = [one for each in attempts if each is not mine[-1] for one in each.launches]
    return of_same_program(earlier, now), now


def _summary(launches: list[Launch]) -> JobSummary:
    for index, one in enumerate(launches):
        one.index = index
    return summarize_job(launches)


def _say(config: RunConfig, text: str) -> None:
    """Say something when the agent is gone, also where the script's output is."""
    line = TEXT.line(printable(text))
    for path in (config.launcher_log, config.script.output if config.script is not None else ""):
        append_to(path, config.node, line)
    within(_SHOWN_S, partial(_show, line), None)  # nobody reads it, most likely


def _show(line: str) -> None:
    with suppress(OSError):
        os.write(sys.stderr.fileno(), line.encode(errors="replace"))
