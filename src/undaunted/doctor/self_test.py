"""A tiny job that is killed, hung and recovers: does `undaunted run` do its work here?"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.process import module_command
from undaunted.base.text import format_duration, one_line
from undaunted.journal.job.summary import summarize
from undaunted.journal.launch import LaunchState
from undaunted.journal.reader import find_journals, read_journal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from undaunted.journal.job.values import NodePart

DEADLINE_S = 90.0
_SILENCE_S = 2
_STOP_S = 10.0
_SHOWN_LINES = 6
_MOST_BYTES = 64 * 1024
_SCRIPT = '''\
"""Two ranks that count to 40. Neither torch nor a network is needed."""

import threading

import undaunted

pause = threading.Event()
for iteration in range(40):
    undaunted.step(iteration)
    pause.wait(0.05)
'''


class Step(msgspec.Struct, frozen=True):
    """One thing that was to work.

    Attributes:
        name: what.
        ok: whether it did.
        text: how, for people.
        seconds: how long it took, None = not known.
    """

    name: str
    ok: bool
    text: str
    seconds: float | None = None


class SelfTest(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the test.

    Attributes:
        steps: what was to work, in its order.
        seconds: all of it.
        output: last lines of the launcher, if something did not work.
        directory: where the job is left, "" = removed.
    """

    steps: tuple[Step, ...]
    seconds: float
    output: str = ""
    directory: str = ""

    @property
    def ok(self) -> bool:
        """Return whether everything worked."""
        return all(step.ok for step in self.steps)


def run_self_test(
    environ: Mapping[str, str], *, deadline_s: float = DEADLINE_S, keep: bool = False
) -> SelfTest:
    """Run the job; returns within ``deadline_s`` and 20 s.

    Args:
        environ: environment of the launcher; settings of jobs in it are left out.
        deadline_s: then it is stopped, seconds.
        keep: leave the directory of the job.

    Raises:
        OSError: there is no directory for it, or the launcher cannot be started.
    """
    began = time.monotonic()
    directory = Path(tempfile.gettempdir(), f"undaunted-doctor-{secrets.token_hex(8)}")
    try:
        directory.mkdir(0o700)
        script = directory / "count.py"
        script.write_text(_SCRIPT, "utf-8")
        code = _run(directory, script, _clean(environ), deadline_s)
        rounds = _rounds(directory / "run")
        steps = judge(code, rounds, deadline_s)
        output = "" if all(step.ok for step in steps) else _last_lines(directory / "output.txt")
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    return SelfTest(
        steps=steps,
        seconds=time.monotonic() - began,
        output=output,
        directory=str(directory) if keep else "",
    )


def judge(code: int | None, rounds: Sequence[NodePart], deadline_s: float) -> tuple[Step, ...]:
    """Say what worked. Pure.

    Args:
        code: exit code of the launcher, None = it did not end in time.
        rounds: what its journal tells.
        deadline_s: how long it had.
    """
    started = bool(rounds) and rounds[0].last_iteration is not None
    steps = [Step("start", started, "two ranks ran" if started else "no rank came to its work")]
    if not started:
        return (*steps, _end(code, deadline_s))
    killed = _round_of(rounds, "crash", 1)
    steps.append(_recovered("rank 1 is killed", killed, rounds))
    hung = _round_of(rounds, "hang", 0)
    steps.append(_recovered("rank 0 hangs", hung, rounds))
    return (*steps, _end(code, deadline_s))


def _round_of(rounds: Sequence[NodePart], kind: str, rank: int) -> NodePart | None:
    for one in rounds:
        if one.verdict is not None and (one.verdict.kind, one.verdict.rank) == (kind, rank):
            return one
    return None


def _recovered(name: str, failed: NodePart | None, rounds: Sequence[NodePart]) -> Step:
    if failed is None:
        seen = "; ".join(one.cause for one in rounds if one.cause) or "nothing"
        return Step(name, ok=False, text=f"not noticed as such; noticed: {one_line(seen)}")
    total = failed.phases.total_to_step_ns if failed.phases is not None else None
    if total is None:
        return Step(name, ok=False, text="noticed, but the ranks did not come back")
    detect = failed.phases.detect_ns if failed.phases is not None else None
    told = "" if detect is None else f"noticed after {format_duration(detect / 1e9)}, "
    if failed.verdict is not None and failed.verdict.limit_s is not None:
        told = f"noticed after {format_duration(failed.verdict.limit_s)} of silence, "
    text = f"{told}both ranks at work again after {format_duration(total / 1e9)}"
    return Step(name, ok=True, text=text, seconds=total / 1e9)


def _end(code: int | None, deadline_s: float) -> Step:
    if code is None:
        return Step("end", ok=False, text=f"the job has not ended within {deadline_s:.0f} s")
    if code:
        return Step("end", ok=False, text=f"the launcher ended with exit code {code}")
    return Step("end", ok=True, text="the job came to its end")


def _run(directory: Path, script: Path, environ: dict[str, str], deadline_s: float) -> int | None:
    """Run the launcher in another session; return its exit code, None = it was stopped."""
    command = [
        *module_command("undaunted.cli.main", "run"),
        *("--run-dir", str(directory / "run")),
        *("--nproc-per-node", "2"),
        *("--max-restarts", "4"),
        *("--worker-start", "fresh"),
        *("--ft-rank-heartbeat-timeout", str(_SILENCE_S)),
        *("--ft-initial-rank-heartbeat-timeout", "30"),
        *("--ft-enable-nic-healthcheck", "false"),
        *("--inject-fault", "sigkill:rank=1,iteration=5"),
        *("--inject-fault", "sleep:rank=0,iteration=10"),
        str(script),
    ]
    launcher: subprocess.Popen[bytes] | None = None
    try:
        with (directory / "output.txt").open("wb") as output, _signals_held():
            launcher = subprocess.Popen(
                command,
                cwd=directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return launcher.wait(deadline_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if launcher is not None:
            _stop(launcher)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Have signals wait meanwhile: who is interrupted in a start does not know what it started.

    They are not blocked, which would be inherited. Used in the main thread.
    """
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {
        number: signal.signal(number, lambda signum, _frame: came.append(signum))
        for number in numbers
    }
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])
        for late in came:
            os.kill(os.getpid(), late)


def _stop(launcher: subprocess.Popen[bytes]) -> None:
    """End the launcher, whatever happened; twice the signal means at once."""
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        if launcher.poll() is not None:
            return
        launcher.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(_STOP_S / 2)


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Leave out settings of jobs; the test needs no GPU, and other checks find a broken one."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("PET_", "UNDAUNTED_", "NVRX_", "SLURM_", "TORCHELASTIC_"))
    }
    return kept | {"CUDA_VISIBLE_DEVICES": ""}


def _rounds(run_dir: Path) -> list[NodePart]:
    """Return the rounds of the job, none if there is no journal."""
    with contextlib.suppress(OSError):
        for path in find_journals(run_dir):
            for events in read_journal(path).launches():
                return summarize(LaunchState.of(events)).rounds
    return []


def _last_lines(path: Path) -> str:
    try:
        content = path.read_bytes()[-_MOST_BYTES:]
    except OSError:
        return ""
    lines = content.decode("utf-8", "replace").strip().splitlines()[-_SHOWN_LINES:]
    return "\n".join(one_line(line) for line in lines)
