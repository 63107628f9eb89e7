"""What a launcher says after failures that come again, and what it does with --advice act."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.launcher import DEADLINE_S, launched, nodes_of_a_job

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

FAILS = """
    import os, undaunted
    n = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    for step in range({last} + 1):
        undaunted.step(step)
    raise {error}
"""
OPTIONS = ("--nproc-per-node", "2", "--max-restarts", "3", "--ft-max-no-progress-cycles", "0")
BAD = 'ValueError("bad batch 17")'


def command(name: str, run_dir: Path, *options: str) -> str:
    run = [sys.executable, "-m", "undaunted.cli.main", name, str(run_dir), *options]
    return subprocess.run(
        run, stdout=subprocess.PIPE, timeout=DEADLINE_S, check=True
    ).stdout.decode()


def events(run_dir: Path, node: str = "*") -> list[dict[str, Any]]:
    (path,) = run_dir.glob(f"journal-{node}.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [event for event in found if event["event"] == "round_advised"]


def advised(run_dir: Path, node: str = "*") -> list[tuple[int, str, bool]]:
    """Round, action, and whether it was done."""
    told = events(run_dir, node)
    return [(each["number"], each["action"], each.get("done", False)) for each in told]


def test_the_same_error_at_the_same_iteration(tmp_path: Path) -> None:
    with launched(tmp_path, FAILS.format(last=5, error=BAD), *OPTIONS) as launcher:
        assert launcher.finish() == 1, launcher.text
        assert advised(launcher.run_dir) == [
            (0, "restart", False), (1, "restart", False), (2, "stop", False), (3, "stop", False),
        ]  # fmt: skip
        said = [line for line in launcher.text.splitlines() if "advice after round" in line]
        assert len(said) == 2
        assert "advice after round 2: end the job: " in said[0]
        assert "--advice act" in said[0]
        run_dir = launcher.run_dir
    found = json.loads(command("explain", run_dir, "--json"))
    event = events(run_dir)[-1]
    assert found["conclusion"]["action"] == "stop"
    assert found["conclusion"]["reason"] == event["reason"]
    assert "advice: end the job: " in command("report", run_dir)
    rounds = json.loads(command("report", run_dir, "--json"))["launches"][0]["rounds"]
    assert [one["advised"]["action"] for one in rounds] == ["restart", "restart", "stop", "stop"]


def test_the_job_ends_with_93_where_that_is_wanted(tmp_path: Path) -> None:
    script = FAILS.format(last=5, error=BAD)
    with launched(tmp_path, script, *OPTIONS, "--advice", "act") as launcher:
        assert launcher.finish() == 93, launcher.text
        assert advised(launcher.run_dir) == [
            (0, "restart", False), (1, "restart", False), (2, "stop", True),
        ]  # fmt: skip
        assert "advice after" not in launcher.text
        launcher.wait_for("no restart, 2 restarts: the program raised an error: 3 times at iter")


@pytest.mark.parametrize(
    ("last", "error"),
    [
        ("n + 1", BAD),  # progress in between
        ("5", 'OSError("the file server is away")'),
        ("5", 'RuntimeError("unspecified launch failure")'),
        ("5", 'ValueError(f"{chr(97 + n)}")'),  # another one each time
    ],
)
def test_what_may_pass_is_restarted(tmp_path: Path, last: str, error: str) -> None:
    script = FAILS.format(last=last, error=error)
    with launched(tmp_path, script, *OPTIONS, "--advice", "act") as launcher:
        assert launcher.finish() == 1, launcher.text
        assert advised(launcher.run_dir) == [(n, "restart", False) for n in range(4)]
        assert "advice" not in launcher.text


BREAKS_ON_TWO = """
    import os, pathlib, signal, threading, undaunted
    node, n = os.environ["ROLE_NAME"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    undaunted.step(10 * n)
    os.write(1, f"a rank of {node}\\n".encode())
    if node == "three":
        pathlib.Path("finish").touch()
    while not pathlib.Path("finish").exists():
        if node == "two" and pathlib.Path("spare").exists():
            os.kill(os.getpid(), signal.SIGSEGV)
        threading.Event().wait(0.02)
"""


@pytest.mark.slow
def test_a_node_that_fails_again_and_again_is_left_out(tmp_path: Path) -> None:
    """It makes progress in between, and is broken nevertheless."""
    options = ("--nnodes", "2:3", "--max-restarts", "5", "--advice", "act")
    with nodes_of_a_job(tmp_path, BREAKS_ON_TWO, *options) as start:
        one = start("one", "is_host=1", "--role", "one")
        two = start("two", "is_host=0", "--role", "two")
        one.wait_for("a rank of one")
        two.wait_for("a rank of two")
        three = start("three", "is_host=0", "--role", "three")
        one.wait_for("spare nodes: three")
        (tmp_path / "spare").touch()
        assert two.finish() == 1, two.text
        two.wait_for("excluded.*node two is left out: .*")
        one.wait_for("done after round 2: go on without two: ")
        assert (one.finish(), three.finish()) == (0, 0), one.text
    said = advised(tmp_path / "run", "one")
    assert said == [(0, "restart", False), (1, "restart", False), (2, "exclude", True)]


ON_ANOTHER_NODE = """
    import os, threading, undaunted
    n, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    undaunted.step(3)
    os.write(1, f"rank {rank} is in round {n}\\n".encode())
    if n != 1:
        undaunted.step(5)
        if rank == n % 3:
            raise ValueError("bad batch 17")
    threading.Event().wait(60)
"""


def test_the_history_outlives_the_leader(tmp_path: Path) -> None:
    """It is killed between failures that are the same."""
    options = ("--nnodes", "3:4", "--max-restarts", "5", "--advice", "act",
               "--ft-max-no-progress-cycles", "0")  # fmt: skip
    with nodes_of_a_job(tmp_path, ON_ANOTHER_NODE, *options) as start:
        one = start("one", "is_host=1")
        others = [start(name, "is_host=0") for name in ("two", "three")]
        one.wait_for("rank . is in round 1")
        others.append(start("four", "is_host=0"))
        one.wait_for("spare nodes: four")
        os.kill(one.process.pid, signal.SIGKILL)
        assert [each.finish() for each in others] == [93, 93, 93], others[0].text
    told = events(tmp_path / "run", "two")
    assert (told[-1]["action"], told[-1]["done"]) == ("stop", True)
    assert "3 times at iteration 5" in told[-1]["reason"]
