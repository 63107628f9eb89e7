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
        [ -z "${NO_STEP:-}" ] || { echo "srun: error: $NO_STEP" >&2; exit 1; }
        [ -z "${BUSY:-}" ] || { echo "srun: step creation disabled, retrying" >&2; exec sleep 300; }
        for word in "$@"; do
            case "$word" in
            --job-name=*) echo "17.0|${word#--job-name=}" >"$SAID/step" ;;
            esac
        done
        while [ "${1#--}" != "$1" ]; do shift; done
        cd "${CHDIR:-.}"
        [ -z "${LOST:-}" ] || printf "$LOST" >&2
        echo $$ >"$SAID/pid"
        export SLURM_STEP_ID=0 SLURM_PROCID=0
        [ -n "${NO_JOURNAL:-}" ] || exec "$@"
        "$@"
        code=$?
        rm -r undaunted-runs
        exit $code
    """,
    "squeue": """
        [ -z "${AWAY:-}" ] || [ -f "$SAID/was-away" ] || {
            touch "$SAID/was-away"
            echo "squeue: error: Unable to contact slurm controller (connect failure)" >&2
            exit 1
        }
        [ ! -f "$SAID/step" ] || cat "$SAID/step"
    """,
    "scancel": """
        echo "scancel $*" >>"$SAID/asked"
        [ -z "${ENDS:-}" ] || { echo "error: Invalid job id specified" >&2; sent=1; }
        tree() { echo "$1"; for child in $(pgrep -P "$1"); do tree "$child"; done; }
        kill "-${1#--signal=}" $(tree "$(cat "$SAID/pid")")  # as Slurm does
        exit "${sent:-0}"
    """,
    "scontrol": """
        case "$*" in
        "show config")
            [ -z "${HANGS:-}" ] || exec sleep 300
            echo "KillWait                = 25 sec"
            ;;
        "write batch_script 17 -") printf '%s\n' '#!/bin/sh' "${HEADER:-}" ;;
        "show partition"*) echo "   MaxNodes=UNLIMITED GraceTime=20 Hidden=NO" ;;
        "--oneliner show job "*)
            [ ! -f "$SAID/ends" ] || STATE=COMPLETING
            echo "JobId=17 JobState=${STATE:-RUNNING} Reason=${REASON:-None} BatchFlag=${BATCH:-1}"
            ;;
        requeue*)
            echo "$*" >>"$SAID/asked"
            [ -z "${ENDS_BY:-}" ] || { : >"$SAID/ends"; kill "-$ENDS_BY" $$; }
            [ -z "${NO_RIGHT:-}" ] || { echo "operation is presently disabled" >&2; exit 1; }
            ;;
        esac
    """,
    "sacctmgr": """
        [ -z "${HANGS:-}" ] || exec sleep 300
        case "$*" in *" name=low "*) echo 00:00:15 ;; *) echo ;; esac
    """,
}
SAVES = """
    import os, sys, threading
    from undaunted.training import Session
    print("grace", os.environ.get("UNDAUNTED_GRACE_S"), flush=True)
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

# Of one rank, which needs no torch: a template would import it for a Session.
ONE = ("--nproc-per-node", "1", "--worker-start", "fresh")


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
            [*command, *ONE, *words, *["train.py"][: "train.py" not in words]],
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
    assert f"received {signal.Signals(number).name}: passed on" in output
    assert job.asked == ["scancel --signal=TERM 17.0", "requeue 17"]


def test_a_signal_comes_while_the_controller_of_slurm_is_away(job: Job) -> None:
    ended, output = job.stop(signal.SIGTERM, AWAY="1")
    assert ended == 75, output
    assert "Unable to contact slurm controller" in output
    assert output.count("saved") == 1
    assert job.asked == ["scancel --signal=TERM 17.0", "requeue 17"]


def test_a_signal_that_slurm_has_sent_to_the_launchers_itself(job: Job) -> None:
    ended, output = job.stop(signal.SIGTERM, ENDS="1", STATE="COMPLETING")
    assert ended == 75, output
    assert "Slurm ends the job" in output
    assert "could not be passed on" not in output


def test_a_step_that_waits_for_its_nodes_ends_with_a_signal(job: Job) -> None:
    process = job.start("pass", BUSY="1")
    assert process.stdout is not None
    before = ""
    while "step creation disabled" not in before:
        line = process.stdout.readline()
        assert line, before
        before += line
    process.send_signal(signal.SIGINT)
    ended, output = job.end(process, before)
    assert ended == 128 + signal.SIGTERM, output
    assert "no launcher started" in output
    assert job.asked == []


def test_launchers_in_another_directory_are_not_lost(job: Job) -> None:
    elsewhere = job.directory / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.py").touch()
    ended, output = job.run("pass", CHDIR="elsewhere")
    assert ended == 0, output
    assert "finished (exit code 0)" in output


TWO = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "localhost,n2"}


def test_a_launcher_that_has_ended_is_not_waited_for(job: Job) -> None:
    lost = r"|/-\b\rsrun: error: n2: task 1: Killed\n"
    ended, output = job.run("pass", **TWO, LOST=lost)
    assert ended == 19, output
    assert "too_few_nodes (exit code 19): " in output
    assert "1 of 2 launchers is left (node n2: Killed), 2 are needed" in output
    assert job.asked == ["requeue 17"]


def test_a_spare_that_ends_changes_nothing(job: Job) -> None:
    lost = r"srun: error: n2: task 1: Killed\n"
    ended, output = job.run("pass", "--spares", "1", **TWO, LOST=lost)
    assert ended == 0, output
    assert "srun: error: n2: task 1: Killed" in output


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


@pytest.mark.parametrize("name", ["TERM", "KILL"])
def test_slurm_ends_the_one_who_asks_it_to_queue_the_job_again(job: Job, name: str) -> None:
    """The processes of a job that goes back to the queue are ended, and scontrol is one of them."""
    ended, output = job.stop(signal.SIGTERM, ENDS_BY=name)
    assert ended == 75, output
    assert job.asked.count("requeue 17") == 1
    assert "could not be queued again" not in output
    assert ("does not show it" in output) == (name == "KILL")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"STATE": "CANCELLED"}, "CANCELLED already"),
        ({"STATE": "COMPLETING", "REASON": "TimeLimit"}, "#SBATCH --signal=TERM@"),
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
    assert "no launcher started" in output
    assert "srun ended with 2; its own lines are above" in output


def test_a_start_without_launchers_does_not_end_as_the_one_before(job: Job) -> None:
    assert job.stop(signal.SIGTERM)[0] == 75
    ended, output = job.run(SAVES, SLURM_RESTART_COUNT="1", NO_STEP="Unable to create step")
    assert ended == 1, output
    assert "srun: error: Unable to create step" in output
    assert "no launcher started" in output
    assert "srun ended with 1" in output
    assert "preempted" not in output
    assert job.asked.count("requeue 17") == 1


def test_a_start_whose_launchers_find_no_job_does_not_end_as_the_one_before(job: Job) -> None:
    assert job.stop(signal.SIGTERM)[0] == 75
    again = ("--nnodes", "1:2", "--rdzv-endpoint", "192.0.2.1:29400", "--rdzv-conf", "timeout=1")
    ended, output = job.run(SAVES, *again, SLURM_RESTART_COUNT="1")
    assert ended == 1, output
    assert "failed (exit code 1)" in output
    assert job.asked.count("requeue 17") == 1


@pytest.mark.parametrize(("program", "code"), [("pass", 0), ("import sys; sys.exit(3)", 1)])
def test_a_job_whose_journal_cannot_be_written_ends_as_srun_does(
    job: Job, program: str, code: int
) -> None:
    ended, output = job.run(program, NO_JOURNAL="1")
    assert ended == code, output
    assert f"srun ended with {code}" in output
    assert ("] finished: " in output) == (code == 0)


def test_srun_that_is_killed_is_named(job: Job) -> None:
    program = 'import os, signal; os.kill(int(open(f"{os.environ["SAID"]}/pid").read()), 9)'
    ended, output = job.run(program.replace('"SAID"', "'SAID'"))
    assert ended == 1, output
    assert "no end is recorded" in output
    assert "srun was killed by SIGKILL" in output


@pytest.mark.parametrize("other", [("--rdzv-id", "other"), ("train.py", "first")])
def test_another_job_in_the_same_directory_is_not_an_earlier_start(
    job: Job, other: tuple[str, ...]
) -> None:
    assert job.run(SAVES, "--run-dir", "run", *other, LAST="30")[0] == 75
    ended, output = job.run(SAVES, "--run-dir", "run", LAST="25")
    assert ended == 75, output
    assert job.asked == ["requeue 17", "requeue 17"], output


def test_settings_of_a_file_count_before_options_are_refused(job: Job) -> None:
    text = "fault_tolerance:\n  max_no_progress_cycles: 3\n"
    (job.directory / "ft.yaml").write_text(text)
    words = ("--ft-cfg-path", "ft.yaml", "--ft-min-progress-iterations", "5")
    ended, output = job.run("pass", *words)
    assert ended == 0, output
    (job.directory / "ft.yaml").write_text(text.replace("3", "0"))
    ended, output = job.run("pass", *words)
    assert ended == 2, output
    assert "undaunted srun: error: --ft-min-progress-iterations" in output


@pytest.mark.parametrize(
    ("env", "seconds"),
    [
        ({}, "25"),
        ({"SLURM_JOB_PARTITION": "short"}, "20"),
        ({"SLURM_JOB_PARTITION": "short", "SLURM_JOB_QOS": "low"}, "15"),
        ({"SLURM_JOB_QOS": "normal"}, "25"),
        ({"SLURM_JOB_QOS": "low", "HEADER": "#SBATCH --signal=TERM@10"}, "10"),
    ],
    ids=["KillWait", "partition", "qos", "qos without", "signal"],
)
def test_the_launchers_know_how_long_slurm_waits(
    job: Job, env: dict[str, str], seconds: str
) -> None:
    _, output = job.stop(signal.SIGTERM, **env)
    assert f"grace {seconds}\n" in output
    said = [line for line in output.splitlines() if "received SIGTERM" in line]
    assert any(f" {seconds}.0 s " in line for line in said), output


def test_a_slurm_that_does_not_answer_does_not_keep_the_job(job: Job) -> None:
    shows = "import os; print('grace', os.environ.get('UNDAUNTED_GRACE_S'), flush=True)"
    code, output = job.run(shows, HANGS="1", SLURM_JOB_QOS="low")
    assert "grace None\n" in output
    assert code == 0
