"""`undaunted srun`: one launcher on each node of a job of Slurm. Design: docs/design/srun.md."""

import asyncio
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from undaunted.base import values
from undaunted.base.deadline import wait_for
from undaunted.base.options import Kind, Opt
from undaunted.base.process import module_command
from undaunted.base.text import count, one_line, printable
from undaunted.base.values import Count
from undaunted.cli.command import Command, HelpAsked
from undaunted.cli.messages import UsageError, complain
from undaunted.cli.options import RUN, RunParsed
from undaunted.cli.program import check_program, program_kind
from undaunted.cli.run_journals import NoRunError, read_run
from undaunted.journal.job.launches import launches_of
from undaunted.journal.job.summary import summarize_job
from undaunted.journal.job.values import JobSummary
from undaunted.journal.reader import DEFAULT_RUNS
from undaunted.services.slurm.allocation import (
    Allocation,
    Next,
    allocation,
    nodes_option,
    read_step,
    step_environ,
    step_words,
    what_next,
)
from undaunted.services.slurm.commands import SlurmError, ask

_SIGNALS = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU),
)
_SAME_S = 1.0  # launchers take the same signal within this time for one
_KILLED = 1  # all launchers were killed: no end is recorded
_END_S = 10.0


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None


class SrunOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `undaunted srun`, which takes those of `undaunted run` as well."""

    spares: Annotated[
        Count, Opt("Nodes of the job that wait until another one is lost", "Options")
    ] = 0
    requeues: Annotated[Count, Opt("How often the job goes back to the queue at most")] = 100
    port: Annotated[
        int | None,
        Kind(values.port, "PORT"),
        Opt("Where the launchers meet on the first node", shown="made of the job's id"),
    ] = None
    srun_options: Annotated[
        list[str],
        Kind(_words, "WORDS", repeat=True),
        Opt("More options for srun, as in --srun-options='--container-image=IMAGE'"),
    ] = []


SRUN = Command(
    "srun",
    SrunOptions,
    "[OPTIONS] SCRIPT [ARGUMENTS OF THE SCRIPT]",
    """\
Runs SCRIPT on all nodes of a job of Slurm: in a batch script, or in a shell of
salloc. It starts one launcher on each node, passes signals on, says at the end
how the job went, and puts it back into the queue where that helps: when it was
preempted, when too few nodes were left, or without the node that is to blame.

A whole script for sbatch:
  #!/bin/bash
  #SBATCH --nodes=6 --no-kill --requeue --open-mode=append --signal=TERM@300
  exec undaunted srun --spares 2 --max-restarts 10 train.py --lr 1e-4
""",
    "It takes all options of undaunted run, for the launchers; --nproc-per-node is auto. It ends "
    "with the exit code of the job.",
    operand="SCRIPT",
    is_program=True,
    refused=RUN.refused,
)


class _Job(NamedTuple):
    """What is started: srun's words, and where the launchers keep their journals."""

    here: Allocation
    step: str
    words: list[str]
    run_dir: Path


def main(argv: Sequence[str]) -> int:
    """Run a program on all nodes of the allocation; return the exit code of the job."""
    try:
        words = SRUN.sort(argv, RUN.spellings)
        own = SRUN.read(words, os.environ).options
        job = asyncio.run(_prepare(own, RUN.read(words, os.environ), words.given))
        code = asyncio.run(_run(job))
        return asyncio.run(_finish(job, code, own.requeues))
    except HelpAsked as asked:
        return SRUN.explain(asked)
    except UsageError as error:
        return complain(SRUN.name, error)


async def _prepare(own: SrunOptions, parsed: RunParsed, given: dict[str, list[str]]) -> _Job:
    """Check all that can be checked here: what fails later fails on every node.

    Raises:
        UsageError: this is no job, or an option does not fit it.
    """
    options = parsed.options
    kind = program_kind(parsed)
    python = os.environ.get("PYTHON_EXEC", "") or sys.executable
    check_program(kind, parsed.target, str(Path.cwd()), python, os.environ)
    try:
        here = allocation(os.environ)
        nnodes = nodes_option(
            options.nnodes if parsed.is_given("nnodes") else None, own.spares, here.nodes
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    host = await _first_host(here)
    made_up = {
        "nnodes": nnodes,
        "rdzv-endpoint": options.rdzv_endpoint or f"{host}:{own.port or here.port}",
        "rdzv-id": options.rdzv_id if parsed.is_given("rdzv-id") else here.run_id,
        "nproc-per-node": str(options.nproc_per_node)
        if parsed.is_given("nproc-per-node")
        else "auto",
    }
    run_dir = Path(options.run_dir or Path(DEFAULT_RUNS, made_up["rdzv-id"]))
    made_up["run-dir"] = str(run_dir)
    launcher = module_command("undaunted.cli.main", "run")
    launcher += [f"--{name}={text}" for name, text in made_up.items()]
    for name, texts in given.items():
        option = RUN.spellings.get(f"--{name}")
        if option is not None and name not in made_up:
            with_value = bool(option.metavar)
            launcher += [f"--{name}={text}" if with_value else f"--{name}" for text in texts]
    step = f"undaunted-{os.getpid()}"
    words = step_words(here, step, own.srun_options)
    spares = here.nodes - int(nnodes.partition(":")[0])
    about = f"{here.nodes} nodes ({here.node_list}), {spares} of them spare"
    if here.nodes == 1:
        about = f"node {here.node_list}"
    cpus = f", {here.cpus} CPUs on each" if here.cpus else ""
    _say(f"job {here.name}: {about}{cpus}; they meet at {made_up['rdzv-endpoint']}; {run_dir}")
    if here.cpus == 1 and options.nproc_per_node != 1:
        _say(
            "the job has one CPU on each node, for the launcher and all ranks: ask for more, "
            "with sbatch --exclusive or --cpus-per-task"
        )
    return _Job(here, step, [*words, *launcher, "--", parsed.target, *parsed.args], run_dir)


async def _first_host(here: Allocation) -> str:
    try:
        hosts = (await ask("scontrol", "show", "hostnames", here.node_list)).split()
    except SlurmError as error:
        raise UsageError(f"the nodes of the job are not known: {error}") from None
    if not hosts:
        raise UsageError(f"SLURM_JOB_NODELIST is {here.node_list!r}, which names no node")
    return hosts[0]


class _Signals:
    """Passes signals on to the launchers, one after another."""

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._sent: dict[int, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def came(self, number: int) -> None:
        """A signal has come; the same within a second is one."""
        now = time.monotonic()
        if now - self._sent.get(number, -_SAME_S) < _SAME_S:
            return
        self._sent[number] = now
        task = asyncio.get_running_loop().create_task(self._pass_on(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, number: int) -> None:
        name = signal.Signals(number).name
        here = self._job.here
        try:
            words = ("--noheader", "--steps", f"--jobs={here.name}", "--format=%i|%j")
            step = read_step(await ask("squeue", *words), self._job.step)
            if not step:
                _say(f"received {name}, but the step of the launchers is not there (any more)")
                return
            await ask("scancel", f"--signal={name.removeprefix('SIG')}", step)
        except SlurmError as error:
            _say(f"{name} could not be passed on to the launchers: {error}")
        else:
            _say(f"received {name}: passed on to the launchers (step {step})")

    async def close(self) -> None:
        """Wait for what is on its way: each command has a deadline."""
        if self._tasks:
            await asyncio.wait(self._tasks)


async def _run(job: _Job) -> int:
    """Start srun and wait for its end; return its exit code."""
    loop = asyncio.get_running_loop()
    signals = _Signals(job)
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, signals.came, number)
    try:
        process = await asyncio.create_subprocess_exec(
            *job.words, env=step_environ(os.environ), start_new_session=True
        )
    except OSError as error:
        raise UsageError(f"srun cannot be run: {error.strerror}; is Slurm on PATH?") from None
    try:
        code = await process.wait()
    finally:
        await _end(process)
        await signals.close()
    return code if code >= 0 else 128 - code


async def _end(process: asyncio.subprocess.Process) -> None:
    """Leave no srun behind, whatever has happened here."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(TimeoutError):
            await wait_for(process.wait(), _END_S)


async def _finish(job: _Job, code: int, requeues: int) -> int:
    """Say how the job went, and queue it again where that helps; return the exit code."""
    try:
        summary = _summary(job.run_dir)
    except NoRunError as error:
        _say(f"no launcher has begun (srun: exit code {code}): {one_line(str(error))}")
        return code or _KILLED
    if summary.exit_code is None:
        line = "no end is recorded: all launchers were killed"
        exit_code, outcome = _KILLED, ""
    else:
        exit_code, outcome = summary.exit_code, summary.outcome
        line = f"{outcome} (exit code {exit_code}): {one_line(summary.reason)}"
    _say(line)
    decided = what_next(
        outcome,
        summary.reason,
        _starts(summary),
        restarts=job.here.restarts,
        requeues=requeues,
    )
    await _try("scontrol", "update", f"JobId={job.here.name}", f"Comment={printable(line)}")
    if decided.why:
        _say(decided.why)
    if decided.again:
        await _requeue(job.here, decided)
    return exit_code


def _summary(run_dir: Path) -> JobSummary:
    journals, left_out = read_run(run_dir)
    return summarize_job(launches_of(journals), left_out=left_out)


def _starts(summary: JobSummary) -> list[int | None]:
    """How far each start of the job came."""
    last: dict[int, int | None] = {}
    for one in summary.rounds:
        known = [n for n in (last.get(one.attempt), one.last_iteration) if n is not None]
        last[one.attempt] = max(known, default=None)
    return [last[attempt] for attempt in sorted(last)]


async def _requeue(here: Allocation, decided: Next) -> None:
    """Put the job back into the queue; Slurm ends this process then."""
    try:
        shown = await ask("scontrol", "--oneliner", "show", "job", here.name)
        about = dict(word.split("=", 1) for word in shown.split() if "=" in word)
        if (state := about.get("JobState", "")) != "RUNNING":
            _say(f"not queued again by this script: for Slurm the job is {state} already")
            return
        if about.get("BatchFlag") == "0":
            _say("not queued again: this is no batch script; start it again yourself")
            return
        without = ""
        if decided.without:
            before = about.get("ExcNodeList", "(null)")
            without = decided.without if before == "(null)" else f"{before},{decided.without}"
            if problem := await _no_room(here, about.get("Command", ""), without):
                nodes = count(here.nodes, "node")
                _say(f"not queued again: without {without} there are no {nodes} for it ({problem})")
                return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is left to do here takes moments
        _say(f"back to the queue{f' without node {decided.without}' * bool(without)}")
        await ask("scontrol", "requeue", here.name)
        if without:
            await ask("scontrol", "update", f"JobId={here.name}", f"ExcNodeList={without}")
    except SlurmError as error:
        _say(
            f"the job could not be queued again: {error}; a job that may be needs "
            "`#SBATCH --requeue`; submit it again"
        )


async def _no_room(here: Allocation, script: str, without: str) -> str:
    """Say why the job could not start without these nodes, "" = it could."""
    words = [f"--partition={here.partition}"] if here.partition else []
    words += [f"--nodes={here.nodes}", f"--exclude={without}"]
    words += [script] if script and os.access(script, os.R_OK) else ["--wrap=true"]
    try:
        await ask("sbatch", "--test-only", *words)
    except SlurmError as error:
        return one_line(str(error), longest=120)
    return ""


async def _try(*words: str) -> None:
    """Run a command of Slurm that nothing depends on."""
    with suppress(SlurmError):
        await ask(*words)


def _say(text: str) -> None:
    print(f"[undaunted] {printable(text)}", file=sys.stderr, flush=True)
