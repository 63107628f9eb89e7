"""One of several launchers is killed, or all stand still together; one may be started again."""

from __future__ import annotations

import os
import re
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import nodes_of_a_job
from undaunted.base.ids import node_name
from undaunted.base.process import descendants

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

RANK = """
    import os, pathlib, threading
    about = "rank {RANK} of {WORLD_SIZE} in round {TORCHELASTIC_RESTART_COUNT}\\n"
    os.write(1, about.format(**os.environ).encode())
    while not pathlib.Path("finish").exists():
        threading.Event().wait(0.02)
"""


def test_the_launcher_of_the_leader_is_killed_and_started_again(tmp_path: Path) -> None:
    options = ("--nnodes", "2", "--max-restarts", "3")
    with nodes_of_a_job(tmp_path, RANK, *options) as start:
        one, two = start("one", "is_host=1"), start("two", "is_host=0")
        one.wait_for("rank 0 of 2 in round 0")
        two.wait_for("rank 1 of 2 in round 0")
        one.process.kill()
        again = start("one", "is_host=1")
        two.wait_for("first cause in round 0: node one: its launcher was killed")
        again.wait_for("that used .*/run before was killed; waiting up to 10 s")
        again.wait_for("rank 0 of 2 in round 1")
        two.wait_for("rank 1 of 2 in round 1")
        (tmp_path / "finish").touch()
        assert (again.finish(), two.finish()) == (0, 0)
        assert "rank 0 was killed" not in one.text + two.text


def test_several_launchers_on_a_host_with_one_command(tmp_path: Path) -> None:
    options = ("--nnodes", "3", "--max-restarts", "1")
    with nodes_of_a_job(tmp_path, RANK, *options) as start:
        launchers = [start("", "is_host=1") for _ in range(3)]
        ranks = {each.wait_for(r"rank (\d) of 3 in round 0")[1] for each in launchers}
        (tmp_path / "finish").touch()
        assert [each.finish() for each in launchers] == [0, 0, 0]
    assert ranks == {"0", "1", "2"}
    told = [re.findall(r"this one is node (\S+) \(--node-name", each.text) for each in launchers]
    host = node_name({})
    assert sorted(name for names in told for name in names) == [f"{host}-2", f"{host}-3"]
    journals = {path.name for path in (tmp_path / "run").glob("journal-*")}
    assert journals == {f"journal-{host}{number}.jsonl" for number in ("", "-2", "-3")}


def test_a_name_that_was_given_twice_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with nodes_of_a_job(tmp_path, RANK, "--nnodes", "2") as start:
        one = start("one", "is_host=1")
        one.wait_for("1 rank of train.py on one")
        again = start("one", "is_host=0")
        assert again.finish() == 2
        again.wait_for(f"launcher .pid {one.process.pid}. of node one; .*--node-name")


def test_a_name_that_another_directory_uses_is_given_up(tmp_path: Path) -> None:
    with nodes_of_a_job(tmp_path, RANK, "--nnodes", "2") as start:
        start("one", "is_host=1").wait_for("1 rank of train.py on one")
        again = start("one", "is_host=0", "--run-dir", "other")
        assert again.finish() == 1
        assert "--node-name" in again.seen[-1]


@pytest.mark.parametrize("first", ["one", "two"])
def test_all_nodes_stand_still_together_as_slurm_suspends_a_job(tmp_path: Path, first: str) -> None:
    options = ("--nnodes", "2:3", "--max-restarts", "0")
    with nodes_of_a_job(tmp_path, RANK, *options) as start:
        names = ("one", "two", "three")
        nodes = {name: start(name, f"is_host={int(name == 'one')}") for name in names}
        spare = nodes["one"].wait_for(r"spare nodes: (\w+)")[1]
        for name in names:
            if name != spare:
                nodes[name].wait_for("rank . of 2 in round 0")
        pids = [each.process.pid for each in nodes.values()]
        trees = {name: [pid, *descendants(pid)] for name, pid in zip(names, pids, strict=True)}

        def tell(name: str, number: int) -> None:
            for pid in trees[name]:
                os.kill(pid, number)

        for name in names:
            tell(name, signal.SIGSTOP)
        threading.Event().wait(8)  # longer than a lease
        others = [name for name in names if name != first]
        tell(first, signal.SIGCONT)
        threading.Event().wait(0.5)
        for name in others:
            tell(name, signal.SIGCONT)
            if name != spare:
                nodes[name].wait_for("did not run for")
        threading.Event().wait(3)  # a follower would have given up its leader
        (tmp_path / "finish").touch()
        codes = {name: each.finish() for name, each in nodes.items()}
        assert codes == dict.fromkeys(names, 0), [each.text for each in nodes.values()]
    assert "round 1" not in "".join(each.text for each in nodes.values())
