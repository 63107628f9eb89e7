"""`undaunted srun`: one launcher on each node of a job of Slurm. Design: docs/design/srun.md."""

import asyncio
import os
import shlex
import signal
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from undaunted.base import values
from undaunted.base.deadline import wait_for
from undaunted.base.ids import NO_NAME, file_name
from undaunted.base.options import Kind, Opt
from undaunted.base.process import module_command
from undaunted.base.text import count, printable
from undaunted.base.values import Count
from undaunted.cli.asking import Here
from undaunted.cli.command import Command, HelpAsked
from undaunted.cli.messages import UsageError, complain
from undaunted.cli.nodes import endpoints_of
from undaunted.cli.options import RUN, RunParsed
from undaunted.cli.program import check_program, current_directory, program_kind
from undaunted.cli.run import check_contradictions
from undaunted.cli.settings import check_settings, with_file
from undaunted.cli.srun_errors import SrunErrors
from undaunted.fault_tolerance.run_config import GRACE_VARIABLE, SCRIPT_VARIABLE, Script
from undaunted.journal.job.launches import Launch, launches_of
from undaunted.journal.job.summary import summarize_job
from undaunted.journal.reader import DEFAULT_RUNS
from undaunted.services.slurm.allocation import (
    Allocation,
    allocation,
    is_ending,
    nodes_option,
    read_step,
    step_environ,
    step_words,
)
from undaunted.services.slurm.commands import SlurmError, ended
from undaunted.services.slurm.grace import grace_s
from undaunted.services.slurm.queue import (
    Queue,
    journals_in,
    of_same_program,
    outcome_line,
    what_follows,
)

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_SIGNALS = (*_STOPS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
_SAME_S = 1.0  # launchers take the same signal within this time for one
_OF_ONE_NODE = ("node-name", "node-rank", "local-addr", "standalone")
_KILLED = 1  # all launchers were killed: no end is recorded
_END_S = 10.0
_SLOW_S = 3.0  # that Slurm may take to answer before a line says so


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
        Opt("The port at which launchers meet on the first node", shown="made of the job's id"),
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
    """What is started.

    Attributes:
        here: the allocation.
        step: name of the launchers' step.
        words, environ: srun's.
        run_dir: where the launchers keep their journals.
        before: how many launches each journal had before this start.
        needed: how many nodes a round needs.
        grace_s: how long Slurm waits from SIGTERM to SIGKILL, 0 = not known.
    """

    here: Allocation
    step: str
    words: list[str]
    environ: dict[str, str]
    run_dir: Path
    before: dict[Path, int]
    needed: int
    grace_s: float = 0.0


def main(argv: Sequence[str]) -> int:
    """Run a program on all nodes of the allocation; return the exit code of the job."""
    try:
        words = SRUN.sort(argv, RUN.spellings)
        own = SRUN.read(words, os.environ).options
        return asyncio.run(_main(own, RUN.read(words, os.environ), words.given))
    except HelpAsked as asked:
        return SRUN.explain(asked)
    except UsageError as error:
        return complain(SRUN.name, error)


async def _main(own: SrunOptions, parsed: RunParsed, given: dict[str, list[str]]) -> int:
    job = _prepare(own, parsed, given)
    job = job._replace(grace_s=await grace_s(job.here, os.environ))
    code = await _run(job)
    return await _finish(job, code, own.requeues)


def _prepare(own: SrunOptions, parsed: RunParsed, given: dict[str, list[str]]) -> _Job:
    """Check all that can be checked here: what fails later fails on every node.

    Raises:
        UsageError: this is no job, or an option does not fit it.
    """
    options, cwd = parsed.options, current_directory()
    python = os.environ.get("PYTHON_EXEC", "") or sys.executable
    check_program(program_kind(parsed, SRUN), parsed.target, cwd, python, os.environ)
    if own.port == 0:
        raise UsageError("--port 0: the other nodes would not know it; give one, or none")
    if own.spares and parsed.is_given("nnodes"):
        raise UsageError(
            f"--spares and {parsed.source('nnodes')} say the same in two ways; keep one of them"
        )
    try:
        here = allocation(os.environ)
        nnodes = nodes_option(
            options.nnodes if parsed.is_given("nnodes") else None, own.spares, here.nodes
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    _check_options(parsed, here, cwd)
    made_up = {
        "nnodes": nnodes,
        "rdzv-endpoint": options.rdzv_endpoint or f"{here.first}:{own.port or here.port}",
        "rdzv-id": here.run_id if options.rdzv_id in {"", NO_NAME} else options.rdzv_id,
        "nproc-per-node": str(options.nproc_per_node)
        if parsed.is_given("nproc-per-node")
        else "auto",
    }
    # With the current directory: --srun-options may give the launchers another one.
    run_dir = Path(cwd, options.run_dir or Path(DEFAULT_RUNS, file_name(made_up["rdzv-id"])))
    made_up["run-dir"] = str(run_dir)
    launcher = module_command("undaunted.cli.main", "run")
    launcher += [f"--{name}={text}" for name, text in made_up.items()]
    for name, texts in given.items():
        option = RUN.spellings.get(f"--{name}")
        if option is not None and name not in made_up:
            with_value = bool(option.metavar)
            launcher += [f"--{name}={text}" if with_value else f"--{name}" for text in texts]
    step = f"undaunted-{os.getpid()}"
    words = [*step_words(here, step, own.srun_options), *launcher]
    words += ["--", parsed.target, *parsed.args]
    _say(f"job {here.name}: {_about(here, made_up, options.elastic)}; {run_dir}")
    before = {journal.path: len(journal.launches()) for journal in journals_in(run_dir)}
    environ = step_environ(os.environ)
    environ.pop(SCRIPT_VARIABLE, None)  # of another job, in which this one was submitted
    environ |= _script(here, own.requeues)
    needed = int(nnodes.partition(":")[0])
    return _Job(here, step, words, environ, run_dir, before, needed)


def _script(here: Allocation, requeues: int) -> dict[str, str]:
    """Return the variable by which launchers can do our part at the end, if our node is lost."""
    node = os.environ.get("SLURMD_NODENAME", "")
    if here.nodes == 1 or not node:  # a shell of salloc is on another host
        return {}
    output = os.readlink("/proc/self/fd/2") if stat.S_ISREG(os.fstat(2).st_mode) else ""
    script = Script(job=str(here.job), node=node, requeues=requeues, output=output)
    return {SCRIPT_VARIABLE: msgspec.json.encode(script).decode()}


def _check_options(parsed: RunParsed, here: Allocation, cwd: str) -> None:
    """Refuse what is right for one launcher, and wrong where all of them get it."""
    options = parsed.options
    if here.nodes > 1:
        for name in _OF_ONE_NODE:
            if parsed.is_given(name) and getattr(options, name.replace("-", "_")) is not False:
                raise UsageError(
                    f"{parsed.source(name)} is about one node, and all {here.nodes} launchers "
                    "would get it; leave it out"
                )
    whole, _ = with_file(parsed, cwd)
    check_contradictions(whole)
    check_settings(whole, os.environ)
    if options.rdzv_endpoint:
        endpoints_of(parsed)


def _about(here: Allocation, made_up: dict[str, str], elastic: bool) -> str:
    cpus = f", {count(here.cpus, 'CPU')} on each" if here.cpus else ""
    if here.nodes == 1:
        return f"node {here.node_list}{cpus.removesuffix(' on each')}"
    spares = here.nodes - int(made_up["nnodes"].partition(":")[0])
    of_them = f", {spares} of them spare" if spares and not elastic else ""
    nodes = f"{here.nodes} nodes ({here.node_list}){of_them}{cpus}"
    return f"{nodes}; they meet at {made_up['rdzv-endpoint']}"


class _Signals:
    """Passes signals on to the launchers, one after another."""

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._sent: dict[int, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.srun: asyncio.Future[asyncio.subprocess.Process] = asyncio.Future()

    def came(self, number: int) -> None:
        """A signal has come; the same within a second is one."""
        now = time.monotonic()
        if self._closed:  # no launcher is left, and all that is to be done has a deadline
            return
        if now - self._sent.get(number, -_SAME_S) < _SAME_S:
            return
        # Slurm signals all processes of a step: SIGINT would interrupt a rank instead of asking it
        # to save, as the launcher would. Those who send it again mean it.
        is_first = not any(one in self._sent for one in _STOPS)
        passed_on = signal.SIGTERM if number in _STOPS and is_first else number
        self._sent[number] = now
        task = asyncio.get_running_loop().create_task(self._pass_on(number, passed_on))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, number: int, passed_on: int) -> None:
        name, to_send = signal.Signals(number).name, signal.Signals(passed_on).name
        here, srun = self._job.here, await self.srun
        slow = asyncio.get_running_loop().call_later(
            _SLOW_S, _say, f"received {name}: not passed on yet, as Slurm does not answer"
        )
        try:
            words = ("--noheader", "--steps", f"--jobs={here.name}", "--format=%i|%j")
            queue = Queue(here, _say)
            step = read_step(await queue.ask("squeue", *words), self._job.step)
            if step:
                await queue.ask("scancel", f"--signal={to_send.removeprefix('SIG')}", step)
        except SlurmError as error:
            if is_ending(str(error)):
                _say(f"received {name}: Slurm ends the job, and has told the launchers itself")
            else:
                _say(f"{name} could not be passed on to the launchers: {error}")
            return
        except asyncio.CancelledError:
            _say(f"{name} was never passed on to the launchers, as Slurm did not answer")
            raise
        finally:
            slow.cancel()
        if step:
            as_other = f" as {to_send}" if to_send != name else ""
            _say(f"received {name}: passed on to the launchers{as_other} (step {step})")
        elif srun.returncode is None and not _launches(self._job)[1]:
            _say(f"received {name}: no launcher has started yet, so srun is asked to end")
            with suppress(ProcessLookupError):
                srun.terminate()
        else:
            _say(f"received {name}, but the step of the launchers is not there any more")

    async def close(self) -> None:
        """Wait a moment for what is on its way; ignore what comes from now on."""
        self._closed = True
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=_END_S)
            for task in left:
                task.cancel()


async def _run(job: _Job) -> int:
    """Start srun and wait for its end; return its exit code."""
    loop = asyncio.get_running_loop()
    signals = _Signals(job)
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, signals.came, number)
    environ = dict(job.environ)
    if job.grace_s:
        environ.setdefault(GRACE_VARIABLE, f"{job.grace_s:g}")
    errors = SrunErrors(job.here.nodes, job.needed, Here(job.run_dir), _say)
    try:
        process = await asyncio.create_subprocess_exec(
            *job.words, env=environ, stderr=errors.stderr, start_new_session=True
        )
    except OSError as error:
        raise UsageError(f"srun cannot be run: {error.strerror}; is Slurm on PATH?") from None
    finally:
        errors.began()
    signals.srun.set_result(process)
    try:
        return await process.wait()
    finally:
        await _end(process)
        await errors.close()
        await signals.close()


def _as_in_shell(code: int) -> int:
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
    earlier, launches = _launches(job)
    summary = summarize_job(launches)
    by_srun = f"srun {ended(code)}; its own lines are above"
    exit_code = _KILLED if launches else _as_in_shell(code)
    if summary.exit_code is None and code == 0:
        line = f"finished: srun ended with 0, but no launcher could write so in {job.run_dir}"
        exit_code = 0
    elif not launches:
        line = f"no launcher started, or none could write in {job.run_dir} ({by_srun})"
    elif summary.exit_code is None:
        line = f"no end is recorded: launchers were killed, or could not write it ({by_srun})"
    else:
        exit_code, line = summary.exit_code, outcome_line(summary)
    _say(line)
    queue = Queue(job.here, _say)
    await queue.comment(line)
    restarts = job.here.restarts
    await queue.put_back(what_follows(summary, summarize_job(earlier), restarts, requeues))
    return exit_code


def _launches(job: _Job) -> tuple[list[Launch], list[Launch]]:
    """Return the launches of earlier starts of the same program, and those of this start."""
    earlier, now = [], []
    for journal in journals_in(job.run_dir):
        launches = journal.launches()
        known = job.before.get(journal.path, 0)
        earlier.append(replace(journal, events=list(chain.from_iterable(launches[:known]))))
        now.append(replace(journal, events=list(chain.from_iterable(launches[known:]))))
    started = launches_of(now)
    return of_same_program(launches_of(earlier), started), started


def _say(text: str) -> None:
    print(f"[undaunted] {printable(text)}", file=sys.stderr, flush=True)
