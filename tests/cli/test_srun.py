"""`undaunted srun` with stand-ins for Slurm's commands; tests/slurm has the real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

# srun runs its program here, on the one node there is; the others note what they are asked.
STAND_INS = {
    "srun": """
        for word in "$@"; do
            case "$word" in
            --job-name=*) echo "17.0|${word#--job-name=}" >"$SAID/step" ;;
            esac
        done
        while [ "${1#--}" != "$1" ]; do shift; done
        echo $$ >"$SAID/pid"
        exec "$@"
    """,
    "squeue": 'cat "$SAID/step"',
    "scancel": """
        echo "scancel $*" >>"$SAID/asked"
        kill "-${1#--signal=}" "$(cat "$SAID/pid")"
    """,
    "scontrol": """
        case "$*" in
        "show hostnames "*) echo localhost ;;
        "--oneliner show job "*) echo "JobId=17 JobState=${STATE:-RUNNING} BatchFlag=${BATCH:-1}" ;;
        requeue*)
            echo "$*" >>"$SAID/asked"
            [ -z "${NO_RIGHT:-}" ] || { echo no right >&2; exit 1; }
            ;;
        esac
    """,
}
SAVES = """
    import os, sys, threading
    from undaunted.training import Session
    LAST = int(os.environ.get("LAST", -1))
    with Session(save=lambda iteration: print("saved", flush=True)) as session:
        for iteration in range(10**9):
            with session.step(iteration):
                threading.Event().wait(0.02)
            if iteration == 20:
                print("is at work", flush=True)
            if iteration == LAST:
                session.request_stop()
            if session.should_stop(iteration):
                break
    sys.exit(session.exit_code)
"""


class Job:
    """`undaunted srun` of a program, started in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.said = directory, directory / "said"
        bin_dir = directory / "bin"
        for made in (self.said, bin_dir):
            made.mkdir()
        for name, body in STAND_INS.items():
            (bin_dir / name).write_text("#!/bin/sh\n" + textwrap.dedent(body).strip() + "\n")
            (bin_dir / name).chmod(0o700)
        self.environ = {
            **{name: text for name, text in os.environ.items() if not name.startswith("SLURM_")},
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "SAID": str(self.said),
            "SLURM_JOB_ID": "17",
            "SLURM_NNODES": "1",
            "SLURM_JOB_NODELIST": "localhost",
        }

    def start(self, program: str, *words: str, **env: str) -> subprocess.Popen[str]:
        (self.directory / "train.py").write_text(textwrap.dedent(program))
        command = [sys.executable, "-m", "undaunted", "srun", "--port", str(free_ports(2))]
        return subprocess.Popen(
            [*command, "--nproc-per-node", "1", *words, "train.py"],
            cwd=self.directory,
            env=self.environ | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, program: str, *words: str, **env: str) -> tuple[int, str]:
        process = self.start(program, *words, **env)
        return self.end(process)

    def end(self, process: subprocess.Popen[str], before: str = "") -> tuple[int, str]:
        """Wait for the end, and leave nothing behind."""
        try:
            output, _ = process.communicate(timeout=90)
        finally:
            process.terminate()
            process.communicate(timeout=30)
        return process.returncode, before + output

    def stop(self, number: int, **env: str) -> tuple[int, str]:
        """Send a signal to a program that saves, once it is at work."""
        process = self.start(SAVES, **env)
        assert process.stdout is not None
        before = ""
        while "is at work" not in before:
            line = process.stdout.readline()
            assert line, before
            before += line
        process.send_signal(number)
        return self.end(process, before)

    @property
    def asked(self) -> list[str]:
        """What Slurm was asked to do."""
        path = self.said / "asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.parametrize(("code", "exit_code", "outcome"), [(0, 0, "finished"), (3, 1, "failed")])
def test_it_ends_as_the_job_does(job: Job, code: int, exit_code: int, outcome: str) -> None:
    ended, output = job.run(f"import sys; sys.exit({code})", "--run-dir", "run")
    assert ended == exit_code, output
    assert f"{outcome} (exit code {exit_code})" in output
    assert job.asked == []
    assert list(job.directory.glob("run/journal-*.jsonl"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_passed_on_and_the_job_goes_back_to_the_queue(job: Job, number: int) -> None:
    ended, output = job.stop(number)
    assert ended == 75, output
    assert output.count("saved") == 1
    name = signal.Signals(number).name.removeprefix("SIG")
    assert job.asked == [f"scancel --signal={name} 17.0", "requeue 17"]


def test_a_task_of_a_sweep_goes_back_alone(job: Job) -> None:
    task = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "1"}
    _, output = job.stop(signal.SIGTERM, **task)
    assert job.asked[-1] == "requeue 17_1", output


def test_a_start_that_came_no_further_is_the_last(job: Job) -> None:
    assert job.stop(signal.SIGTERM)[0] == 75
    ended, output = job.run(SAVES, SLURM_RESTART_COUNT="1", LAST="2")
    assert ended == 75, output
    assert job.asked.count("requeue 17") == 1
    assert "no further" in output


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"STATE": "CANCELLED"}, "CANCELLED already"),
        ({"BATCH": "0"}, "no batch script"),
        ({"NO_RIGHT": "1"}, "#SBATCH --requeue"),
        ({"SLURM_RESTART_COUNT": "100"}, "--requeues is 100"),
    ],
)
def test_a_job_that_cannot_go_back_says_why(job: Job, env: dict[str, str], words: str) -> None:
    ended, output = job.stop(signal.SIGTERM, **env)
    assert ended == 75
    assert words in output


def test_a_launcher_that_does_not_begin(job: Job) -> None:
    ended, output = job.run("pass", "--max-restarts", "1", "--node-rank", "3")
    assert ended == 2, output
    assert "no launcher has begun (srun: exit code 2)" in output


@pytest.mark.parametrize(
    ("words", "env", "complaint"),
    [
        ((), {"SLURM_JOB_ID": ""}, "no job of Slurm"),
        (("--spares", "1"), {}, "--spares 1: the job has 1 node"),
        (("--nnodes", "2"), {}, "--nnodes 2:2: the job has 1 node"),
        (("--srun-options", "'"), {}, "--srun-options"),
        (("--max-restart", "1"), {}, "did you mean --max-restarts"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_starts(
    job: Job, words: tuple[str, ...], env: dict[str, str], complaint: str
) -> None:
    ended, output = job.run("pass", *words, **env)
    assert ended == 2, output
    assert complaint in output
    assert not (job.said / "pid").exists()
