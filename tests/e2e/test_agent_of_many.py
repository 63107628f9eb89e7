"""One of several launchers loses its agent: the others go on."""

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
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

RANK = """
    import os, pathlib, threading
    about = "rank {RANK} of {WORLD_SIZE} in round {TORCHELASTIC_RESTART_COUNT}\\n"
    os.write(1, about.format(**os.environ).encode())
    while not pathlib.Path("finish").exists():
        threading.Event().wait(0.02)
"""


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
        assert (
            "The job goes on without node two if enough others are left (--nnodes: 1)"
            in nodes["two"].text
        )
        nodes["one"].wait_for("rank 0 of 1 in round 1")
        (tmp_path / "finish").touch()
        assert nodes["one"].finish() == 0
