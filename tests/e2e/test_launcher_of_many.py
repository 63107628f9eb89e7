"""One of several launchers is killed: the others say so, and it can be started again at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import nodes_of_a_job

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
