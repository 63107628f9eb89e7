"""Logs of several nodes, written by the log server."""

from __future__ import annotations

import contextlib
import socket
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import Launcher

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

SCRIPT = """
    import os, sys
    rank, cycle = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    for number in range(1000):
        print(f"line {number} of {rank} in {cycle}", flush=number % 100 == 0)
    sys.exit(cycle == "0" and rank == "1")
"""


def free_ports(count: int) -> int:
    """The first of so many ports in a row that are free now."""
    while True:
        with contextlib.ExitStack() as stack:
            first = 0
            try:
                for index in range(count):
                    one = stack.enter_context(socket.socket())
                    one.bind(("127.0.0.1", first and first + index))
                    first = first or one.getsockname()[1]
            except (OSError, OverflowError):
                continue
            return first


@pytest.mark.parametrize("leaves", [0, 2])
def test_logs_of_all_nodes_are_in_one_file(tmp_path: Path, leaves: int) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    port = free_ports(leaves + 2)
    meet = f"--nnodes=2 --rdzv-endpoint=127.0.0.1:{port} --rdzv-id=job7"
    logs = tmp_path / "logs"
    asked = (
        f"--ft-enable-log-server --ft-log-server-port={port + 1} "
        f"--ft-log-aggregator-count={leaves} --ft-per-cycle-applog-prefix={logs}/train.log "
        f"--ft-nvrx-logfile={logs}/launchers.log --worker-start=fresh --max-restarts=1"
    )
    launchers: list[Launcher] = []
    with contextlib.ExitStack() as stack:
        for node in ("n1", "n2"):
            cwd = tmp_path / node
            cwd.mkdir()
            options = [*meet.split(), *asked.split(), f"--node-name={node}", "--run-dir=run"]
            env = {"UNDAUNTED_TOKEN": "a token of this test"}
            launcher = Launcher([*options, "../train.py"], cwd, env)
            stack.callback(launcher.close)
            launchers.append(launcher)
        for launcher in launchers:
            assert launcher.finish() == 0, launcher.text
    for cycle in (0, 1):
        lines = (logs / f"train_cycle{cycle}.log").read_text().splitlines()
        for rank in range(2) if cycle else [1]:
            wanted = [f"{rank}: line {number} of {rank} in {cycle}" for number in range(1000)]
            assert [line for line in lines if line.startswith(f"{rank}: line")] == wanted
    launchers_log = (logs / "launchers.log").read_text()
    for node in ("n1", "n2"):
        assert f" {node} [undaunted] finished, 1 restart" in launchers_log
    for launcher in launchers:
        assert "did not reach" not in launcher.text
        assert not list((launcher.run_dir / "logs").glob("attempt_*"))
