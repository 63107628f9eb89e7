"""One of several launchers loses its agent: the others go on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import Launcher, explained, nodes_of_a_job
from tests.ports import free_ports
from undaunted.cli.report import main as report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

RANK = """
    import os, pathlib, threading
    about = "rank {RANK} of {WORLD_SIZE} in round {TORCHELASTIC_RESTART_COUNT}\\n"
    os.write(1, about.format(**os.environ).encode())
    while not pathlib.Path("finish").exists():
        threading.Event().wait(0.02)
"""


@contextlib.contextmanager
def standing_still(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_killed_agent_is_not_the_end_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(RANK))
    port = free_ports(2)
    common = ["--nnodes", "1:2", "--elastic", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    common += ["--max-restarts", "1", "--run-dir", "run", "--worker-start", "fresh"]
    with contextlib.ExitStack() as opened:
        nodes = {}
        for name, conf in (("one", "last_call_timeout=60"), ("two", "is_host=0")):
            args = [*common, "--node-name", name, "--rdzv-conf", conf, "train.py"]
            nodes[name] = Launcher(args, tmp_path, {"UNDAUNTED_TOKEN": "a token of the tests"})
            opened.callback(nodes[name].close)
        nodes["one"].wait_for("rank . of 2 in round 0")
        nodes["two"].wait_for("rank . of 2 in round 0")
        os.kill(nodes["two"].agent_pid, signal.SIGKILL)
        assert nodes["two"].finish() == 1
        nodes["two"].wait_for("without node two if enough others are left .--nnodes: 1")
        nodes["one"].wait_for("rank 0 of 1 in round 1")
        (tmp_path / "finish").touch()
        assert nodes["one"].finish() == 0


STEPS = """
    import os, pathlib, threading, undaunted
    about = "rank {RANK} of {WORLD_SIZE} in round {TORCHELASTIC_RESTART_COUNT}\\n"
    for step in range(1_000_000):
        undaunted.step(step)
        if step == 1:
            os.write(1, about.format(**os.environ).encode())
        if pathlib.Path("finish").exists():
            break
        threading.Event().wait(0.02)
"""


def test_an_agent_that_stood_still_alone_knows_who_has_ended_its_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with nodes_of_a_job(tmp_path, STEPS, "--nnodes", "2:3", "--max-restarts", "1") as start:
        nodes = {name: start(name, f"lease=1,is_host={int(name == 'a')}") for name in "abc"}
        spare = nodes["a"].wait_for(r"spare nodes: (\w)")[1]
        others = [name for name in "bc" if name != spare]
        for name in ("a", *others):
            nodes[name].wait_for("rank . of 2 in round 0")
        with standing_still(nodes["a"].agent_pid):
            for name in "bc":
                nodes[name].wait_for("rank . of 2 in round 1")
        nodes["a"].wait_for("following the coordinator on")
        (tmp_path / "finish").touch()
        assert {name: each.finish() for name, each in nodes.items()} == dict.fromkeys("abc", 0)
    assert "not sent by this launcher" not in nodes["a"].text
    assert report([str(tmp_path / "run"), "--json"]) == 0
    job = json.loads(capsys.readouterr().out)["job"]
    first, second = job["rounds"]
    assert first["failure"]["node"] == "a"
    assert 0 < first["restart_ns"] < second["began_ns"] - first["began_ns"]


def test_the_agent_of_a_coordinator_that_nobody_replaces_stands_still_for_a_while(
    tmp_path: Path,
) -> None:
    with nodes_of_a_job(tmp_path, STEPS, "--nnodes", "2", "--max-restarts", "0") as start:
        nodes = {name: start(name, f"lease=1,is_host={int(name == 'a')}") for name in "ab"}
        for each in nodes.values():
            each.wait_for("rank . of 2 in round 0")
        with standing_still(nodes["a"].agent_pid):
            nodes["b"].wait_for("the coordinator at .* is gone: .*; the ranks go on")
        nodes["b"].wait_for("the agent of node a, or its machine, stood still for")
        (tmp_path / "finish").touch()
        assert {name: each.finish() for name, each in nodes.items()} == dict.fromkeys("ab", 0)


def test_the_agent_of_a_coordinator_that_nobody_replaces_stands_still_for_too_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with nodes_of_a_job(tmp_path, STEPS, "--nnodes", "2", "--max-restarts", "1") as start:
        conf = "lease=1,away_timeout=1"
        nodes = {name: start(name, f"{conf},is_host={int(name == 'a')}") for name in "ab"}
        for each in nodes.values():
            each.wait_for("rank . of 2 in round 0")
        with standing_still(nodes["a"].agent_pid):
            nodes["a"].wait_for("the agent of node a .* stands still: its ranks got SIGKILL")
            nodes["b"].wait_for("the ranks are stopped")
        for each in nodes.values():
            each.wait_for("first cause in round 0: .*node a.*stood still")
            each.wait_for("rank . of 2 in round 1")
        (tmp_path / "finish").touch()
        assert {name: each.finish() for name, each in nodes.items()} == dict.fromkeys("ab", 0)
    assert report([str(tmp_path / "run"), "--json"]) == 0
    job = json.loads(capsys.readouterr().out)["job"]
    assert job["rounds"][0]["failure"]["node"] == "a"
    assert explained(tmp_path / "run")["nodes"] == ["a"]


def test_a_spare_that_may_not_take_over_says_until_when_it_waits(tmp_path: Path) -> None:
    with nodes_of_a_job(tmp_path, RANK, "--nnodes", "1:2", "--max-restarts", "1") as start:
        one = start("one", "is_host=1,join_timeout=2")
        one.wait_for("if node one is lost.*--coordinator-store.*undaunted coordinator")
        one.wait_for("rank 0 of 1 in round 0")
        two = start("two", "is_host=0,join_timeout=2")
        one.wait_for("spare nodes: two")
        os.kill(one.agent_pid, signal.SIGKILL)
        two.wait_for("waiting up to 2.0 s for the coordinator: no other node")
        assert two.finish() == 19
        assert "no coordinator for 2 s" in two.text


@pytest.mark.parametrize("own_dirs", [False, True], ids=["one directory", "a directory each"])
def test_a_job_starts_again_while_a_launcher_of_its_earlier_start_lives(
    tmp_path: Path, own_dirs: bool
) -> None:
    options = ["--nnodes", "3", "--rdzv-id", "again", "--max-restarts", "5"]
    with nodes_of_a_job(tmp_path, RANK, *options) as start:

        def start_all(names: list[str], directory: str) -> list[Launcher]:
            conf = "lease=1,timeout=10m,join_timeout=10m"
            own = [("--run-dir", f"{directory}-{name}") if own_dirs else () for name in names]
            return [
                start(name, f"{conf},is_host={int(name == names[0])}", *directory_of)
                for name, directory_of in zip(names, own, strict=True)
            ]

        *killed, left = start_all(["a0", "a1", "a2"], "first")
        for launcher in (*killed, left):
            launcher.wait_for("rank . of 3 in round 0")
        for launcher in killed:  # at once, before one of them leads
            os.kill(launcher.agent_pid, signal.SIGKILL)
        assert [launcher.finish() for launcher in killed] == [1, 1]
        left.wait_for("the ranks are stopped")
        # Each has its node's name, as a scheduler gives it, where they share no directory.
        again = start_all(["a0", "a1", "a2"] if own_dirs else ["b0", "b1", "b2"], "second")
        for launcher in again:
            launcher.wait_for("rank . of 3 in round 0")
        # It ends by itself where the others come too late to tell it to.
        how = {1: "the job was started again", 19: "have ended, and too few others are left"}
        assert how[left.finish()] in left.text
        (tmp_path / "finish").touch()
        assert [launcher.finish() for launcher in again] == [0, 0, 0]


@pytest.mark.parametrize("own_dirs", [False, True], ids=["one directory", "a directory each"])
def test_a_job_that_slurm_starts_again_is_another_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_dirs: bool
) -> None:
    """Of two nodes one would be enough to go on with the earlier start, which has no restart."""
    options = ["--nnodes", "2", "--rdzv-id", "slurm-17", "--max-restarts", "0"]
    conf = "timeout=10m,join_timeout=10m,away_timeout=10m"
    with nodes_of_a_job(tmp_path, RANK, *options) as start:

        def start_all(names: list[str]) -> list[Launcher]:
            own = [("--run-dir", f"{name}-of-each") if own_dirs else () for name in names]
            hosts = [f"{conf},is_host={int(name == names[0])}" for name in names]
            return [start(*each, *of) for *each, of in zip(names, hosts, own, strict=True)]

        first, left = start_all(["a0", "a1"])
        for launcher in (first, left):
            launcher.wait_for("rank . of 2 in round 0")
        os.kill(first.agent_pid, signal.SIGKILL)
        assert first.finish() == 1
        left.wait_for("the coordinator at .* is gone")
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        again = start_all(["b0", "b1"])
        for launcher in again:
            launcher.wait_for("rank . of 2 in round 0")
        assert left.finish() == 1
        assert "the job was started again" in left.text
        (tmp_path / "finish").touch()
        assert [launcher.finish() for launcher in again] == [0, 0]


@pytest.mark.parametrize(
    ("host", "code", "line"),
    [
        ("no-such-host.invalid", 1, "no coordinator for 1 s"),
        ("no such host", 2, "cannot be the name of a machine"),
    ],
)
def test_a_name_may_not_be_known_yet(tmp_path: Path, host: str, code: int, line: str) -> None:
    endpoint = ["--rdzv-endpoint", f"{host}:29400", "--rdzv-conf", "timeout=1"]
    with nodes_of_a_job(tmp_path, RANK, "--nnodes", "2", *endpoint) as start:
        launcher = start("a", "timeout=1")
        assert launcher.finish() == code
        assert line in launcher.text
