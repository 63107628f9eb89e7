"""The launcher's own process, where it cannot start."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

CODE = """
import os, sys, threading
from undaunted.fault_tolerance import front
from undaunted.fault_tolerance.run_config import RunConfig

def no_process():
    raise BlockingIOError(11, "Resource temporarily unavailable")

def no_thread(self):
    raise RuntimeError("can't start new thread")

directory, which = sys.argv[1:]
if which == "process":
    os.fork = no_process
else:
    threading.Thread.start = no_thread
config = RunConfig(
    run_id="x", node="here", nproc_per_node=1, max_restarts=0, kind="program", target="true",
    args=[], cwd=directory, run_dir=directory, log_dir=directory, stdout=[0], stderr=[0],
    python=sys.executable,
)
sys.exit(front.run(config))
"""


@pytest.mark.parametrize(("which", "code"), [("process", 2), ("thread", 1)])
def test_the_limit_of_processes_is_named_with_the_remedy(
    tmp_path: Path, which: str, code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path), which],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == code
    assert line.startswith("[undaunted] ")
    assert "ulimit -u" in line
