"""Functions that are restarted inside their processes, under ``undaunted run`` on one node."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

# Rank 1 fails in the first iteration, when all are in the function.
PROGRAM = """
    import os, pathlib, signal, sys, threading
    from undaunted import inprocess

    def say(text):
        os.write(1, (text + "\\n").encode())

    def fail(how):
        if how == "raise":
            raise ValueError("a fault")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise inprocess.exception.RestartAbort("enough")

    @inprocess.Wrapper()
    def train(call: inprocess.CallWrapper):
        rank, round_ = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
        say(f"iteration {call.iteration}: rank {rank} of {os.environ['WORLD_SIZE']} in {round_}")
        pathlib.Path(f"here{rank}-{round_}").touch()
        gives_up = sys.argv[1] == "abort"
        back = "UNDAUNTED_INPROCESS_REJOIN" in os.environ
        if sys.argv[1] == "always":
            raise ValueError("never works")
        if gives_up or (call.iteration == 0 and rank == "1" and not back):
            while len(list(pathlib.Path().glob(f"here*-{round_}"))) < 3:
                threading.Event().wait(0.02)
            if gives_up or round_ == "0":
                fail(sys.argv[1])
        elif call.iteration == 0 and round_ == "0":
            threading.Event().wait()
        return f"returned in rank {rank}"

    say(train())
"""
RANKS = ("--nproc-per-node", "3")
slow = partial(pytest.param, marks=pytest.mark.slow)


def test_an_exception_restarts_the_function_in_all_ranks(tmp_path: Path) -> None:
    with launched(tmp_path, PROGRAM, *RANKS, args=("raise",)) as launcher:
        assert launcher.finish() == 0
        for rank in range(3):
            launcher.wait_for(f"iteration 1: rank {rank} of 3 in 0")
            launcher.wait_for(f"returned in rank {rank}")
        launcher.wait_for(r"in-process restart 1: rank 1: .*a fault")
        launcher.wait_for(r"in-process restart 1: 3 ranks running again")
        phases = [event["phase"] for event in launcher.events("inprocess_phase")]
        assert phases[0] == "detect"
        assert phases[-2:] == ["agree", "re-enter"]
        assert {"abort", "stop", "finalize", "health"} < {*phases}
        whats = [event["what"] for event in launcher.events("inprocess_call")]
        assert whats == ["begun", "finished"]


def test_a_killed_rank_is_done_without_until_it_is_back(tmp_path: Path) -> None:
    wanted = ("--ft-restart-policy", "min-healthy", "--ft-restart-lost-ranks")
    with launched(tmp_path, PROGRAM, *RANKS, *wanted, args=("kill",)) as launcher:
        assert launcher.finish() == 0
        launcher.wait_for(r"rank 1 \(node .*\) is lost: killed by SIGKILL; the others go on")
        launcher.wait_for("in-process restart 1: 2 ranks running again")
        launcher.wait_for("finished: every rank exited with 0")
        launcher.wait_for("iteration 1: rank 1 of 2 in 0")
        lost = launcher.events("rank_lost")[0]
        assert (lost["rank"], lost["round"]) == (1, 0)
        assert len(launcher.events("round_started")) == 1


# Who comes in place of rank 1 is let in by the next fault.
COMES_BACK = """
    import os, signal, threading
    from undaunted import inprocess

    @inprocess.Wrapper()
    def train(call: inprocess.CallWrapper):
        rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
        os.write(1, f"iteration {call.iteration}: rank {rank} of {world_size}\\n".encode())
        if world_size == "3" and call.iteration > 0:
            return
        threading.Event().wait(0.3)
        if call.iteration > 0 and rank == "0":
            raise ValueError("let it in")
        if call.iteration == 0 and rank == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()

    train()
"""


def test_a_lost_rank_comes_back_if_so_wanted(tmp_path: Path) -> None:
    wanted = ("--ft-restart-policy", "min-healthy", "--ft-restart-lost-ranks")
    with launched(tmp_path, COMES_BACK, *RANKS, *wanted) as launcher:
        assert launcher.finish() == 0, launcher.text
        launcher.wait_for("iteration 1: rank . of 2")
        for rank in range(3):
            launcher.wait_for(f"iteration [2-9]: rank {rank} of 3")
        launcher.wait_for("in-process restart .: 3 ranks running again")
        launcher.wait_for("finished: every rank exited with 0$")
        (replaced,) = launcher.events("rank_replaced")
        assert replaced["rank"] == 1


# Who comes in place of rank 1 waits for something else before it could join the others.
COMES_TOO_LATE = """
    import os, signal, threading
    from undaunted import inprocess

    if "UNDAUNTED_INPROCESS_REJOIN" in os.environ:
        threading.Event().wait()

    @inprocess.Wrapper()
    def train(call: inprocess.CallWrapper):
        if call.iteration == 0 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait(None if call.iteration == 0 else 0.1)

    train()
"""


def test_a_job_ends_although_a_rank_that_was_started_again_has_not_joined(tmp_path: Path) -> None:
    wanted = ("--ft-restart-policy", "min-healthy", "--ft-restart-lost-ranks")
    with launched(tmp_path, COMES_TOO_LATE, *RANKS, *wanted) as launcher:
        assert launcher.finish() == 0, launcher.text
        (replaced,) = launcher.events("rank_replaced")
        exited = launcher.events("rank_exited")[-1]
        assert (exited["rank"], exited["pid"], exited["by_us"]) == (1, replaced["pid"], True)
        assert len(launcher.events("round_started")) == 1


# Who comes in place of rank 1 waits for a restart, when the others have finished and are ending.
COMES_WHEN_ALL_IS_DONE = """
    import atexit, os, pathlib, signal, threading

    here = pathlib.Path()
    back = "UNDAUNTED_INPROCESS_REJOIN" in os.environ
    if back:
        (here / f"pid-{os.getpid()}").touch()

    @atexit.register  # before the import, so that it runs after the package has closed its link
    def end_after_the_other():
        pids = [] if back else ["self"]
        while any(pathlib.Path("/proc", pid).exists() for pid in pids):
            threading.Event().wait(0.02)
            pids = [path.name[4:] for path in here.glob("pid-*")] or pids

    from undaunted import inprocess

    @inprocess.Wrapper()
    def train(call: inprocess.CallWrapper):
        if call.iteration == 0 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait(None if call.iteration == 0 else 0.1)

    train()
"""


def test_a_rank_that_was_started_again_ends_well_if_the_others_have_finished(
    tmp_path: Path,
) -> None:
    wanted = ("--ft-restart-policy", "min-healthy", "--ft-restart-lost-ranks")
    with launched(tmp_path, COMES_WHEN_ALL_IS_DONE, *RANKS, *wanted) as launcher:
        assert launcher.finish() == 0, launcher.text
        launcher.wait_for("the others had finished before")
        assert "Traceback" not in launcher.text
        assert len(launcher.events("rank_lost")) == 1
        assert len(launcher.events("rank_replaced")) == 1
        exits = [
            (event["rank"], event.get("exit_code")) for event in launcher.events("rank_exited")
        ]
        assert exits[:2] == [(1, None), (1, 0)]


@pytest.mark.parametrize("policy", ["any-failed", "min-healthy"])
def test_a_killed_rank_ends_the_round_otherwise(tmp_path: Path, policy: str) -> None:
    restarts = ("--max-restarts", "1", "--ft-restart-policy", policy)
    with launched(tmp_path, PROGRAM, *RANKS, *restarts, args=("kill",)) as launcher:
        assert launcher.finish() == 0
        launcher.wait_for(r"rank 1 \(node .*\) was killed by SIGKILL")
        for rank in range(3):
            launcher.wait_for(f"iteration 0: rank {rank} of 3 in 1")
        assert not launcher.events("rank_lost")


# The launcher watches heartbeats as well: the wrapper is the quicker one, or the slower one.
HANG = """
    import ctypes, os, signal, sys, time
    from datetime import timedelta
    import torch, torch.distributed as dist
    import undaunted
    from undaunted import inprocess

    def load_batch():
        if sys.argv[1] == "sleep":
            time.sleep(600)
        if sys.argv[1] == "C":
            # A signal, such as the wrapper's or the one for stacks, ends a pause, not the wait for
            # a mutex; the launcher has to end that one.
            libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
            while soft == 40:
                libc.pthread_mutex_lock(mutex)
            libc.pause()
        if sys.argv[1] == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)

    second = timedelta(seconds=1)
    soft = float(sys.argv[2])

    @inprocess.Wrapper(
        soft_timeout=soft * second,
        hard_timeout=2 * soft * second,
        progress_watchdog_interval=0.2 * second,
        monitor_thread_interval=0.2 * second,
        termination_grace_time=0.2 * second,
    )
    def train(call: inprocess.CallWrapper):
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", store=call.store, rank=rank, world_size=size)
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and call.iteration == 0
        for step in range(4):
            undaunted.step(step)
            call.ping()
            if first and step == 2 and rank == 1:
                load_batch()
            dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()

    train()
"""


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["sleep", slow("C"), slow("stop")])
@pytest.mark.parametrize(("soft_s", "limit"), [("3", "60"), ("40", "4")])
def test_one_verdict_on_a_hang(tmp_path: Path, kind: str, soft_s: str, limit: str) -> None:
    limits = ("--ft-rank-heartbeat-timeout", limit, "--max-restarts", "1")
    options = ("--nproc-per-node", "4", *limits)
    with launched(tmp_path, HANG, *options, args=(kind, soft_s)) as launcher:
        assert launcher.finish() == 0
        (line,) = re.findall(r"rank \d \(node .* hangs: .*", launcher.text)
        assert line.startswith("rank 1 (node ")
        assert "3 ranks wait for it in all_reduce" in line
        assert ("stopped by a signal" if kind == "stop" else "in load_batch (train.py:") in line
        inside = [event["reasons"][0] for event in launcher.events("inprocess_phase")[:1]]
        verdicts = [(each["rank"], each["watch"]) for each in launcher.events("verdict")]
        if limit == "4":
            assert (inside, verdicts) == ([], [(1, "heartbeat")])
        else:
            assert inside == [line]
            # A stopped process cannot be interrupted, and is ended.
            assert verdicts == ([(1, "hard timeout")] if kind == "stop" else [])


def test_a_call_that_cannot_go_on_is_restarted_with_new_processes_then_given_up(
    tmp_path: Path,
) -> None:
    options = ("--ft-restart-policy", "min-healthy", "--max-restarts", "1")
    with launched(tmp_path, PROGRAM, *RANKS, *options, args=("abort",)) as launcher:
        assert launcher.finish() == 1
        verdicts = launcher.events("verdict")
        assert [verdict["round"] for verdict in verdicts] == [0, 1]
        assert all("RestartAbort" in str(verdict["line"]) for verdict in verdicts)
        actions = [event["action"] for event in launcher.events("decision")]
        assert actions == ["restart", "end"]


def test_a_function_that_fails_at_once_each_time_is_given_up(tmp_path: Path) -> None:
    with launched(tmp_path, PROGRAM, *RANKS, args=("always",)) as launcher:
        assert launcher.finish() == 1
        launcher.wait_for("the same fault 3 times in a row.*never works")
        launcher.wait_for("iteration 2: rank")
        assert "iteration 3: rank" not in launcher.text
