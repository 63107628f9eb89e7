"""The node that coordinates the job is told to leave: another one does from then on."""

from __future__ import annotations

import os
import signal
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


def test_the_node_of_the_coordinator_leaves_a_job_too_small_for_a_vote(tmp_path: Path) -> None:
    options = ("--nnodes", "2:3", "--max-restarts", "1")
    with nodes_of_a_job(tmp_path, RANK, *options) as start:
        one = start("one", "last_call_timeout=60")
        two, three = start("two", "is_host=0"), start("three", "is_host=0")
        others = {"two": two, "three": three}
        one.wait_for("rank . of 2 in round 0")
        os.kill(one.process.pid, signal.SIGTERM)
        assert one.finish() == 75
        for launcher in others.values():
            launcher.wait_for("rank . of 2 in round 1")
            launcher.wait_for("following the coordinator on (two|three)")
        back = start("one", "is_host=1")
        back.wait_for("spare nodes: one")
        (tmp_path / "finish").touch()
        assert [each.finish() for each in (two, three, back)] == [0, 0, 0]
        assert "in round 2" not in two.text + three.text + back.text
