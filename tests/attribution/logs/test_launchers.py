"""Logs of Slurm's jobs in which a launcher of undaunted says how the job has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from undaunted.attribution.logs.analyse import Reading, read_folder, read_logs

if TYPE_CHECKING:
    from pathlib import Path

BEGIN = """\
[undaunted] job 5: 3 nodes (n[1-3]), 1 of them spare, 2 CPUs on each; they meet at n1:20005; runs/5
[undaunted] 2 ranks of train.py on n1, 10 restarts allowed; report: undaunted report runs/5
[undaunted] 2 ranks of train.py on n2; report: undaunted report runs/5
"""
LOST = """\
srun: error: Node failure on n2
slurmstepd-n1: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-28T10:00:00 DUE TO NODE FAILURE ***
srun: error: n2: task 1: Killed
"""
AGAIN = """\
[undaunted] first cause in round 0: node n2 was lost: silent for 5.0 s
[undaunted] restart 1 of 10: 2 ranks of this node running again 8.1 s after the failure was noticed
"""
REQUEUED = (
    "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-11-28T10:00:00 DUE TO PREEMPTION ***"
)
CRASH = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
ZeroDivisionError: division by zero
"""


def ended(outcome: str, reason: str) -> str:
    code = {"finished": 0, "preempted": 75, "too few nodes": 19, "failed": 1}[outcome]
    return (
        f"[undaunted] {outcome}, 1 restart: {reason}\n"
        f"[undaunted] {outcome.replace(' ', '_')} (exit code {code}): {reason}\n"
    )


FINISHED = ended("finished", "every rank exited with 0")
PREEMPTED = ended("preempted", "the launcher on node n1 received SIGTERM")
FAILED = ended("failed", "rank 1 (node n1, pid 7) raised ZeroDivisionError: division by zero")
FEW = ended("too few nodes", "node n2 was lost, and 1 node of 2 is left")
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=5.0. Some tasks were killed.\n"


def read(path: Path, *parts: str) -> Reading:
    (path / "slurm-5.out").write_text("".join(parts))
    return read_folder([path / "slurm-5.out"])


@pytest.mark.parametrize(
    "parts",
    [
        (BEGIN, LOST, AGAIN, FINISHED),
        (BEGIN, AGAIN, FINISHED, LOST),  # Slurm says it late
        (BEGIN, AGAIN, FINISHED, OOM),  # survived, and srun ends with 1
        (BEGIN, PREEMPTED, f"{REQUEUED}\n", BEGIN, FINISHED),
        (BEGIN, CRASH, FAILED, BEGIN, FINISHED),
    ],
)
def test_a_job_that_has_finished_has_not_failed(tmp_path: Path, parts: tuple[str, ...]) -> None:
    reading = read(tmp_path, *parts)
    assert (reading.findings, reading.ended) == ([], True)


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ((BEGIN, LOST, AGAIN, CRASH, FAILED), "program_error"),
        ((BEGIN, AGAIN, LOST, CRASH, FAILED), "program_error"),
        ((BEGIN, PREEMPTED, f"{REQUEUED}\n", BEGIN, CRASH, FAILED), "program_error"),
        ((BEGIN, CRASH, FAILED, BEGIN, PREEMPTED), "preempted"),
        ((BEGIN, CRASH, PREEMPTED), "preempted"),
        ((BEGIN, FEW), "node_failed"),
        ((BEGIN, FINISHED, CRASH), "program_error"),  # of another program in the script
        # No last word: a requeue after the first node was lost, and the start after it.
        ((BEGIN, LOST, BEGIN, CRASH), "program_error"),
    ],
)
def test_the_last_start_counts_as_its_launcher_has_it(
    tmp_path: Path, parts: tuple[str, ...], cause: str
) -> None:
    reading = read(tmp_path, *parts)
    assert reading.findings[0].cause == cause
    assert not reading.ended


def test_failures_after_which_the_launchers_went_on_are_survived(tmp_path: Path) -> None:
    lost = "node n2 was lost: silent for 5.0 s"
    reading = read(tmp_path, BEGIN, LOST, AGAIN)
    assert (reading.findings, reading.survived) == ([], (lost,))
    assert read(tmp_path, BEGIN, AGAIN.splitlines()[0]).survived == ()  # none has gone on yet
    assert read(tmp_path, BEGIN, AGAIN, FINISHED).survived == (lost,)
    assert read(tmp_path, BEGIN, AGAIN, PREEMPTED, BEGIN).survived == ()  # of an earlier start
    alone = "[undaunted] rank 1 (node n1, pid 7) raised ValueError: x\n"
    spare = "[undaunted] spare nodes: n3\n"
    again = AGAIN.splitlines()[1]
    assert read(tmp_path, BEGIN, spare, alone, again).survived == (
        "rank 1 (node n1, pid 7) raised ValueError: x",
    )
    assert read(tmp_path, BEGIN, spare, again).survived == ()


def test_the_last_word_has_why_the_job_is_not_queued_again(tmp_path: Path) -> None:
    why = "not queued again: this start came to iteration 5, no further than one before"
    last = read(tmp_path, BEGIN, PREEMPTED, f"[undaunted] {why}\n").last
    assert last is not None
    assert last.outcome == "preempted"
    assert last.text.endswith(f"; {why}")
    assert read(tmp_path, BEGIN, f"[undaunted] {why}\n").last is None


def test_several_launchers_by_themselves_are_told_apart_by_their_nodes(tmp_path: Path) -> None:
    begin = BEGIN.partition("\n")[2]
    assert read(tmp_path, begin, CRASH, FAILED, begin, FINISHED).ended
    assert read(tmp_path, begin, CRASH, FAILED, begin, CRASH, FAILED).findings


def test_one_node_that_is_left_out_does_not_end_the_job(tmp_path: Path) -> None:
    for name, last in (("n1", FINISHED), ("n2", "[undaunted] excluded: node n2 is unhealthy\n")):
        (tmp_path / f"{name}.log").write_text(BEGIN + CRASH + last)
    assert read_folder([tmp_path / "n1.log", tmp_path / "n2.log"]).ended


def test_a_task_of_srun_is_a_node_where_launchers_run(tmp_path: Path) -> None:
    crash = "srun: error: n2: task 1: Segmentation fault\n"
    path = tmp_path / "log"
    path.write_text(BEGIN + crash)
    (found,) = read_logs([path]).findings
    assert (found.cause, found.ranks, found.nodes) == ("native_crash", (), ("n2",))
    path.write_text(crash)
    (found,) = read_logs([path]).findings
    assert found.ranks == (1,)


def test_a_daemon_is_no_node(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("slurmstepd-n1: error: task 0: disk quota exceeded\n")
    (found,) = read_logs([path]).findings
    assert found.nodes == ("n1",)


def test_an_end_by_a_signal_of_slurm_is_one(tmp_path: Path) -> None:
    for line in (
        "srun: error: n1: task 0: User defined signal 1",
        "/var/spool/slurmd/job00005/slurm_script: line 7: 4711 User defined signal 1   srun run",
    ):
        (tmp_path / "log").write_text(f"{line}\n")
        (found,) = read_logs([tmp_path / "log"]).findings
        assert found.cause == "terminated"
