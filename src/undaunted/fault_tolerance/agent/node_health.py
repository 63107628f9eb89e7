"""Checks of the node: all of them before every round; the cheap ones every few seconds in a round.

They run in a program, `health.check_node`. `NodeHealth` starts it, asks it, waits at most as long
as each check may take, and ends it. Where there is nothing to check, there is no program.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undaunted.base.child import Helper
from undaunted.base.deadline import in_time
from undaunted.base.process import script_command
from undaunted.base.text import count, one_line
from undaunted.health import strikes
from undaunted.health.answers import (
    PROGRAM,
    START_S,
    Examination,
    Report,
    Result,
    first_line,
    request,
)
from undaunted.health.check import SERVICE_DEADLINE_S, needed
from undaunted.health.check import reason as _reason
from undaunted.journal import events as e

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.journal.writer import JournalWriter

# A wait counts at most so much: when this process itself was stopped, its checks were as well.
_SLICE_S = 1.0
_STRIKES_S = 1.0  # for the file of strikes
_LATE_S = 5.0  # after which a line says what is waited for
_NS = 1_000_000_000


@dataclass(frozen=True)
class Checked:
    """The outcome of the checks, and the time that they took together."""

    report: Report = field(default_factory=Report)
    duration_ns: int = 0


def _import_path(cwd: str) -> tuple[str, ...]:
    """Return where installed packages are, without the directory that a job is started in."""
    theirs = {os.path.realpath(path) for path in (cwd, ".")}
    return tuple(
        path
        for path in sys.path
        if Path(path).is_absolute() and os.path.realpath(path) not in theirs
    )


class NodeHealth:
    """The health of this node. Owns the program, while it runs.

    Args:
        config: the run; says what to check.
        environ: of the ranks; says which devices they see.
        journal: gets how all checks went, and repeated ones when one of them fails.
        say: shows a line.
    """

    def __init__(
        self,
        config: RunConfig,
        environ: Mapping[str, str],
        journal: JournalWriter,
        say: Callable[[str], None],
    ) -> None:
        settings = config.health_checks._replace(
            visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
            endpoint=config.node_health_socket,
            import_path=_import_path(config.cwd),
        )
        self._settings = settings
        self._environ = environ
        self._journal = journal
        self._say = say
        self._said: set[str] = set()
        self._interval_s = config.ft.node_health_check_interval
        self._seen: dict[str, Any] = {}
        self._program: _Program | None = None
        self._ended: list[_Program] = []  # killed, and perhaps waiting for a driver
        self._number = 0
        self._watch: asyncio.Task[None] | None = None
        self._has_periodic = False
        self._strikes = Path(config.strike_file) if config.strike_file else None
        self._strike_limit, self._run_id = config.strike_limit, config.run_id
        self.wanted = needed(settings)

    @property
    def longest_s(self) -> float:
        """Return how long `examine` takes at most, seconds; 0 = there is nothing to check."""
        return START_S + SERVICE_DEADLINE_S if self.wanted else 0.0

    def pids(self) -> set[int]:
        """The program, and earlier ones that cannot end."""
        self._ended = [program for program in self._ended if not program.reap()]
        running = [] if self._program is None else [self._program]
        return {program.pid for program in (*running, *self._ended) if program.is_alive()}

    async def examine(self, number: int = -1) -> str:
        """Make all checks, at the same time; a check that does not answer in time is a finding.

        Args:
            number: the round that has ended, -1 before the first.

        Returns:
            Why this node is unhealthy, "" if it is not.
        """
        if number < 0 and (refused := await self._refused()):
            return refused
        if not self.wanted:
            return ""
        checked = await self._ask(periodic=False)
        if not self._has_periodic:
            self._end_program()
        await self._record(number, checked)
        return checked.report.problem()

    def begin_watch(self, number: int, failed: Callable[[str], None]) -> None:
        """Repeat the checks that are cheap, if there are any, until one fails.

        Args:
            number: the round that runs.
            failed: called once, on the event loop, with why the node is unhealthy.
        """
        self.end_watch()
        if self._has_periodic:
            self._watch = asyncio.get_running_loop().create_task(self._repeat(number, failed))
            self._watch.add_done_callback(_raise)

    def end_watch(self) -> None:
        """Do not repeat them any more; `examine` may follow at once."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def close(self) -> None:
        """End the program and whatever waits for it."""
        self.end_watch()
        self._end_program()
        for program in self._ended:
            program.release()
        self._ended.clear()

    async def _repeat(self, number: int, failed: Callable[[str], None]) -> None:
        problem = ""
        while not problem:
            await asyncio.sleep(self._interval_s)
            checked = await self._ask(periodic=True)
            problem = checked.report.problem()
        await self._record(number, checked)
        self._watch = None  # what follows may call `end_watch`
        failed(problem)

    async def _record(self, number: int, checked: Checked) -> None:
        """Record the findings; say once what could not be checked."""
        problem = checked.report.problem()
        self._journal.record(
            e.NodeChecked(
                round=number,
                duration_ns=checked.duration_ns,
                problem=problem,
                checks=[_result(one) for one in checked.report.results],
            )
        )
        if problem:
            await self._strike(problem)
        for note in checked.report.notes():
            if note not in self._said:
                self._said.add(note)
                self._say(one_line(note))

    async def _refused(self) -> str:
        """Why this node is refused for what it did in earlier jobs, "" = it is not."""
        if (path := self._strikes) is None:
            return ""
        try:
            reading = asyncio.to_thread(in_time, _STRIKES_S, lambda: strikes.read(path))
            known, others = await reading
        except OSError as error:
            self._say(f"strikes against this node are not known: {path}: {_reason(error)}")
            return ""
        if others:
            self._say(
                f"{path} holds {count(others, 'line')} beside its strikes, which stay as they "
                "are; is that the right file for --strike-file?"
            )
        why = strikes.refusal(known, self._strike_limit, time.time())
        return f"{why} (once it is repaired, remove {path})" if why else ""

    async def _strike(self, problem: str) -> None:
        if (path := self._strikes) is None:
            return
        strike = strikes.Strike(time.time(), self._run_id, problem)
        try:
            await asyncio.to_thread(in_time, _STRIKES_S, lambda: strikes.add(path, strike))
        except OSError as error:
            self._say(f"this strike is not remembered: {path}: {_reason(error)}")

    def _say_late(self, examination: Examination) -> None:
        self._say(one_line(f"still waiting for {examination.waits_for()}"))

    async def _ask(self, *, periodic: bool) -> Checked:
        began_ns = time.monotonic_ns()
        self._number += 1
        examination = Examination(self._number, self._seen)
        if self._program is not None and not self._program.is_alive():
            self._end_program()  # it may have been killed: another one knows what it knew
        try:
            program = self._program or self._start()
            program.send(request(self._number, periodic=periodic))
            await _collect(program, examination, self._say_late)
        except (OSError, ValueError) as error:
            examination.end(str(error))
        if examination.stuck:
            self._end_program()
        if not periodic:
            self._has_periodic = examination.has_periodic
        return Checked(examination.report(), time.monotonic_ns() - began_ns)

    def _start(self) -> _Program:
        self._program = _Program(self._environ, first_line(self._settings, self._seen))
        return self._program

    def _end_program(self) -> None:
        if self._program is not None:
            self._program.kill()
            self._ended.append(self._program)
            self._program = None


def _raise(task: asyncio.Task[None]) -> None:
    """Have a bug of ours noticed: what the loop's callbacks raise ends the job."""
    if not task.cancelled():
        task.result()


def _result(one: Result) -> e.CheckResult:
    return e.CheckResult(
        name=one.name,
        subject=one.subject,
        duration_ns=None if one.seconds is None else int(one.seconds * _NS),
        text=one.text,
        failed=one.failed,
    )


async def _collect(
    program: _Program, examination: Examination, late: Callable[[Examination], None]
) -> None:
    """Take lines until there will be none, or time is up; call ``late`` once if that takes long.

    Raises:
        OSError, ValueError: the program is gone, or says something else.
    """
    waited_s = 0.0
    while True:
        for line in program.lines():
            examination.take(line, waited_s)
        left_s = examination.wait_s(waited_s)
        if left_s <= 0:
            return
        began = time.monotonic()
        await program.news(min(left_s, _SLICE_S))
        before_s, waited_s = waited_s, waited_s + min(time.monotonic() - began, _SLICE_S)
        if before_s < _LATE_S <= waited_s:
            late(examination)


class _Program(Helper):
    """The program, running; the line ``first`` is sent before any other."""

    def __init__(self, environ: Mapping[str, str], first: bytes) -> None:
        super().__init__(script_command(PROGRAM), environ, "the program that makes them")
        self._unsent = first

    def send(self, data: bytes) -> None:
        """See `Helper`; the first time, what is to be said first is sent as well."""
        data, self._unsent = self._unsent + data, b""
        super().send(data)
