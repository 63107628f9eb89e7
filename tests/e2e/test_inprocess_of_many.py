"""Functions that are restarted inside their processes, under launchers of several nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import Launcher
from tests.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

# In the first iteration all wait; rank 1 for the word to fail.
PROGRAM = """
    import datetime, os, pathlib, signal, sys, threading
    from undaunted import inprocess

    def say(text):
        os.write(1, (text + "\\n").encode())

    @inprocess.Wrapper(heartbeat_timeout=datetime.timedelta(seconds=8))
    def train(call: inprocess.CallWrapper):
        rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
        say(f"iteration {call.iteration}: rank {rank} of {world_size} in "
            f"{os.environ['TORCHELASTIC_RESTART_COUNT']}")
        if call.iteration > 0 and world_size != "3":
            return f"returned in rank {rank}"
        fails = rank == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        while not (fails and pathlib.Path("fail").exists()):
            threading.Event().wait(0.02)
            if pathlib.Path("done").exists():
                return "done"
        if sys.argv[1] == "raise":
            raise ValueError("a fault")
        os.kill(os.getpid(), signal.SIGKILL)

    say(train())
"""


@contextlib.contextmanager
def nodes(
    tmp_path: Path, how: str, names: str, *options: str, ranks: int = 1
) -> Iterator[list[Launcher]]:
    """Launchers whose ranks are all in the function; the first one hosts."""
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    port = free_ports(2)
    common = ["--rdzv-endpoint", f"127.0.0.1:{port}", "--run-dir", "run", *options]
    common += ["--nproc-per-node", str(ranks)]
    with contextlib.ExitStack() as opened:
        launchers = []
        for name in names:
            host = "last_call_timeout=60" if name == names[0] else "is_host=0"
            args = [*common, "--node-name", name, "--rdzv-conf", host, "train.py", how]
            launchers.append(Launcher(args, tmp_path, {"UNDAUNTED_TOKEN": "a token of the tests"}))
            opened.callback(launchers[-1].close)
        for launcher in launchers:
            launcher.wait_for(rf"iteration 0: rank \d of {ranks * len(names)} in 0")
        yield launchers


def test_a_fault_on_one_node_restarts_the_function_on_all(tmp_path: Path) -> None:
    with nodes(tmp_path, "raise", "ab", "--nnodes", "2") as launchers:
        (tmp_path / "fail").touch()
        for launcher in launchers:
            launcher.wait_for(r"iteration 1: rank \d of 2 in 0")
            assert launcher.finish() == 0
        assert "in-process restart 1: 2 ranks running again" in launchers[0].text


def test_the_others_go_on_without_a_rank_and_its_node(tmp_path: Path) -> None:
    wanted = ("--nnodes", "1:2", "--ft-restart-policy", "min-healthy")
    with nodes(tmp_path, "kill", "ab", *wanted) as launchers:
        (tmp_path / "fail").touch()
        lost = next(each for each in launchers if "rank 1 of 2" in each.text)
        (other,) = set(launchers) - {lost}
        other.wait_for("iteration 1: rank 0 of 1 in 0")
        other.wait_for("returned in rank 0")
        assert other.finish() == 0
        assert lost.finish() == 0, "the job is done"
        assert "killed by SIGKILL; it was the last one that was left of its node" in other.text


def test_a_node_without_one_of_its_ranks_is_not_healthy(tmp_path: Path) -> None:
    wanted = ("--nnodes", "2", "--ft-restart-policy", "min-healthy", "--max-restarts", "1")
    with nodes(tmp_path, "kill", "ab", *wanted, ranks=2) as launchers:
        (tmp_path / "fail").touch()
        for launcher in launchers:
            launcher.wait_for(r"iteration 0: rank \d of 4 in 1")
        (tmp_path / "done").touch()
        assert [launcher.finish() for launcher in launchers] == [0, 0]
        assert any("the others go on without it" in each.text for each in launchers)
        assert all("first cause in round 0: node" in each.text for each in launchers)


@pytest.mark.slow
def test_the_function_goes_on_when_the_coordinator_is_taken_over(tmp_path: Path) -> None:
    wanted = ("--nnodes", "2:3", "--ft-restart-policy", "min-healthy")
    with nodes(tmp_path, "raise", "abc", *wanted) as launchers:
        host, *others = launchers
        os.kill(host.agent_pid, signal.SIGKILL)
        for launcher in others:
            launcher.wait_for(r"iteration 1: rank \d of 2 in 0")
            assert launcher.finish() == 0
        texts = "\n".join(launcher.text for launcher in others)
        assert "takes over the coordination" in texts
        assert "in-process restart 1: 2 ranks running again" in texts
