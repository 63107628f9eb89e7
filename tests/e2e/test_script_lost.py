"""Launchers of a job of Slurm whose batch script is lost; tests/slurm has the real one."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import nodes_of_a_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.e2e.launcher import Launcher

pytestmark = pytest.mark.e2e

SCONTROL = """\
    case "$*" in
    "--oneliner show job 17")
        [ -z "${SLOW:-}" ] || { echo asked >"$SAID/slow"; exec sleep 300; }
        about="JobId=17 JobState=${STATE:-RUNNING} Restarts=${RESTARTS:-0} BatchFlag=1"
        echo "$about NodeList=${LEFT:-a,b}" ;;
    *) echo "scontrol $*" >>"$SAID/asked" ;;
    esac
"""
SCANCEL = 'echo "scancel $*" >>"$SAID/asked"'
TRAIN = """
    import os, signal, sys, threading
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    print("at work", os.environ["RANK"], flush=True)
    if os.environ.get("WAITS"):
        told.wait()
    sys.exit(int(os.environ.get("CODE", 0)) or (3 if told.is_set() else 0))
"""
Start = "Callable[..., tuple[Launcher, Launcher]]"


class Slurm:
    """Stand-ins for its commands, and what they were asked."""

    def __init__(self, directory: Path) -> None:
        self.said, self.output = directory / "said", directory / "slurm-17.out"
        bin_dir = directory / "bin"
        for made in (self.said, bin_dir):
            made.mkdir()
        for name, body in (("scontrol", SCONTROL), ("scancel", SCANCEL)):
            (bin_dir / name).write_text("#!/bin/sh\n" + textwrap.dedent(body))
            (bin_dir / name).chmod(0o700)
        self.output.write_text("what the script has printed\n")
        self.environ = {
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "SAID": str(self.said),
            "SLURM_JOB_ID": "17",
            "SLURM_NNODES": "3",
            "SLURM_JOB_NODELIST": "gone,a,b",
        }

    def script(
        self, node: str = "gone.invalid", requeues: int = 3, job: str = "17"
    ) -> dict[str, str]:
        about = {"job": job, "node": node, "requeues": requeues, "output": str(self.output)}
        return {"UNDAUNTED_SCRIPT": json.dumps(about)}

    @property
    def asked(self) -> list[str]:
        """What was asked to change the job, without the comments."""
        path = self.said / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if "Comment=" not in line]


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


@pytest.fixture
def start(tmp_path: Path, slurm: Slurm) -> Iterator[Callable[..., tuple[Launcher, Launcher]]]:
    """``start(CODE="1")`` starts the launchers that are left of the job, until the test ends."""
    with nodes_of_a_job(tmp_path, TRAIN, "--nnodes", "2") as launch:

        def start(**env: str) -> tuple[Launcher, Launcher]:
            env = slurm.environ | slurm.script() | env
            return (
                launch("a", "is_host=1", **env, SLURM_PROCID="1"),
                launch("b", "is_host=0", **env, SLURM_PROCID="2"),
            )

        yield start


def test_a_finished_job_is_ended(start: Callable[..., tuple[Launcher, ...]], slurm: Slurm) -> None:
    codes = [one.finish() for one in start()]
    assert codes == [0, 0]
    assert set(slurm.asked) == {"scancel --state=RUNNING 17"}
    said = slurm.output.read_text()
    assert "what the script has printed" in said
    assert "finished (exit code 0)" in said


def test_a_job_that_failed_is_ended(
    start: Callable[..., tuple[Launcher, ...]], slurm: Slurm
) -> None:
    assert [one.finish() for one in start(CODE="5")] == [1, 1]
    assert set(slurm.asked) == {"scancel --state=RUNNING 17"}
    assert "failed (exit code 1)" in slurm.output.read_text()


def test_a_preempted_job_goes_back_to_the_queue(
    start: Callable[..., tuple[Launcher, ...]], slurm: Slurm
) -> None:
    launchers = start(WAITS="1")
    for one in launchers:
        one.wait_for("at work")
    for one in launchers:
        one.process.send_signal(signal.SIGTERM)
    assert [one.finish() for one in launchers] == [75, 75]
    assert set(slurm.asked) == {"scontrol requeue 17"}


def test_a_job_that_was_put_back_often_enough_is_ended(
    start: Callable[..., tuple[Launcher, ...]], slurm: Slurm
) -> None:
    launchers = start(WAITS="1", **slurm.script(requeues=0))
    for one in launchers:
        one.wait_for("at work")
    for one in launchers:
        one.process.send_signal(signal.SIGTERM)
    assert [one.finish() for one in launchers] == [75, 75]
    assert set(slurm.asked) == {"scancel --state=RUNNING 17"}


@pytest.mark.parametrize(
    "env", [{"STATE": "COMPLETING"}, {"RESTARTS": "1"}, {"SLURM_RESTART_COUNT": "1"}]
)
def test_a_job_that_somebody_has_ended_is_left_alone(
    start: Callable[..., tuple[Launcher, ...]], slurm: Slurm, env: dict[str, str]
) -> None:
    assert [one.finish() for one in start(**env)] == [0, 0]
    assert slurm.asked == []


def test_a_script_whose_host_answers_ends_the_job_itself(
    start: Callable[..., tuple[Launcher, ...]], slurm: Slurm
) -> None:
    launchers = start(**slurm.script(node="localhost"), LEFT="localhost,a,b")
    assert [one.finish() for one in launchers] == [0, 0]
    assert slurm.asked == []


def test_a_host_that_is_back_does_not_bring_its_script_back(
    start: Callable[..., tuple[Launcher, ...]], slurm: Slurm
) -> None:
    """It refuses connections, but Slurm does not count it as one of the job's."""
    assert [one.finish() for one in start(**slurm.script(node="localhost"))] == [0, 0]
    assert set(slurm.asked) == {"scancel --state=RUNNING 17"}


def test_the_script_of_another_job_is_none_of_this_one(
    start: Callable[..., tuple[Launcher, ...]], slurm: Slurm, tmp_path: Path
) -> None:
    assert [one.finish() for one in start(**slurm.script(job="16"))] == [0, 0]
    assert slurm.asked == []
    assert not list((tmp_path / "run").glob("logs-*"))


def test_ranks_do_not_hear_of_the_script(
    start: Callable[..., tuple[Launcher, ...]], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import os; assert 'UNDAUNTED_SCRIPT' not in os.environ")
    assert [one.finish() for one in start()] == [0, 0]


def test_a_signal_ends_the_wait_for_slurm(
    start: Callable[..., tuple[Launcher, ...]], slurm: Slurm
) -> None:
    os.mkfifo(slurm.said / "slow")
    launchers = start(SLOW="1")
    for _ in launchers:
        assert (slurm.said / "slow").read_text() == "asked\n"
    for one in launchers:
        one.process.send_signal(signal.SIGTERM)
    assert [one.finish() for one in launchers] == [0, 0]
    assert slurm.asked == []


def test_what_is_printed_is_in_files_too(
    start: Callable[..., tuple[Launcher, ...]], slurm: Slurm, tmp_path: Path
) -> None:
    for one in start():
        one.finish()
    for node, rank in (("a", 0), ("b", 1)):
        (path,) = (tmp_path / "run").glob(f"logs-{node}/attempt_0/0/stdout.log")
        assert path.read_text() == f"at work {rank}\n"
        assert "finished" in (tmp_path / "run" / f"launcher-{node}.log").read_text()
    assert str(tmp_path / "run" / "logs-a") in slurm.output.read_text()
