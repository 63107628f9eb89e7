"""What only a bug of ours can bring about."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CODE = """
import socket, sys
from undaunted.fault_tolerance.agent import outside, start
from undaunted.fault_tolerance.run_config import RunConfig

def bug(self):
    raise ZeroDivisionError("a bug")

outside.Outside._front_says = bug
directory = sys.argv[1]
config = RunConfig(
    run_id="x", node="here", nproc_per_node=1, max_restarts=0, kind="program", target="sleep",
    args=["600"], cwd=directory, run_dir=directory, log_dir=directory, stdout=[0], stderr=[0],
    python=sys.executable,
)
ours, theirs = socket.socketpair()
ours.send(b"x")
start.run_agent(config, theirs)
"""


def test_a_bug_in_a_callback_ends_the_job_with_its_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ZeroDivisionError: a bug")
