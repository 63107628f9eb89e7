"""Logs of several nodes, written by the log server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import Launcher
from tests.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.e2e

SCRIPT = """
    import os, sys
    rank, cycle = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    for number in range(1000):
        print(f"line {number} of {rank} in {cycle}", flush=number % 100 == 0)
    sys.exit(cycle == "0" and rank == "1")
"""


def test_logs_of_all_nodes_are_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    port = free_ports(2)
    meet = f"--nnodes=2 --rdzv-endpoint=127.0.0.1:{port} --rdzv-id=job7"
    logs = tmp_path / "logs"
    asked = (
        f"--ft-enable-log-server --ft-log-server-port={port + 1} "
        f"--ft-log-aggregator-count=2 --ft-per-cycle-applog-prefix={logs}/train.log "
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


SLOW = """
    import os
    rank = os.environ["RANK"]
    print(f"before {rank}", flush=True)
    os.read(os.open("../go", os.O_RDONLY), 1)
    print(f"after {rank}", flush=True)
"""


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def log_server_of(pid: int) -> int:
    """The process of the log server that another process has started, 0 = there is none."""
    for child in children_of(pid):
        with contextlib.suppress(OSError):
            if b"output.server.program" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
    return 0


def wait_for_lines(log: Path, text: str, number: int) -> None:
    """Until so many lines of a file, which is perhaps to come, have this text."""
    command = ["tail", "-n", "+1", "-F", str(log)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as tail:
        assert tail.stdout is not None
        deadline = threading.Timer(30.0, tail.kill)
        deadline.start()
        found = list(islice((line for line in tail.stdout if text in line), number))
        deadline.cancel()
        deadline.join()
        tail.kill()
    assert len(found) == number


@contextlib.contextmanager
def pipe(path: Path) -> Iterator[Callable[[], int]]:
    """A pipe that ranks wait in; returns what lets two of them go on."""
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)  # so that opening it never waits
    try:
        yield lambda: os.write(end, b"go")
    finally:
        os.close(end)


def start(tmp_path: Path, stack: contextlib.ExitStack, node: str, options: str) -> Launcher:
    cwd = tmp_path / node
    cwd.mkdir()
    words = [*options.split(), f"--node-name={node}", "--run-dir=run", "../train.py"]
    launcher = Launcher(words, cwd, {"UNDAUNTED_TOKEN": "a token of this test"})
    stack.callback(launcher.close)
    return launcher


def test_a_killed_log_server_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SLOW))
    port = free_ports(2)
    logs = tmp_path / "logs"
    options = (
        f"--nnodes=2 --rdzv-endpoint=127.0.0.1:{port} --rdzv-id=job7 --worker-start=fresh "
        f"--ft-enable-log-server --ft-log-server-port={port + 1} "
        f"--ft-per-cycle-applog-prefix={logs}/train.log"
    )
    with contextlib.ExitStack() as stack:
        logs.mkdir()
        log = logs / "train_cycle0.log"
        go = stack.enter_context(pipe(tmp_path / "go"))
        launchers = [start(tmp_path, stack, node, options) for node in ("n1", "n2")]
        wait_for_lines(log, "before", 2)
        for launcher in launchers:  # one of them serves, the other would if that one ended
            killed = log_server_of(launcher.agent_pid)
            os.kill(killed, signal.SIGKILL)
            launcher.wait_for(rf"the log server \(pid {killed}\) has ended; it is started again")
        go()
        for launcher in launchers:
            assert launcher.finish() == 0, launcher.text
    lines = log.read_text().splitlines()
    for rank in (0, 1):
        assert [x for x in lines if x.startswith(f"{rank}: ")] == [
            f"{rank}: before {rank}",
            f"{rank}: after {rank}",
        ]


def test_a_job_whose_log_server_never_comes_ends_well(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    (tmp_path / "train.py").write_text(textwrap.dedent(SLOW))
    port = free_ports(1)
    with socket.socket() as nobody:  # bound, and not listening
        nobody.bind(("127.0.0.1", 0))
        options = (
            f"--nnodes=2 --rdzv-endpoint=127.0.0.1:{port} --rdzv-id=job7 --worker-start=fresh "
            f"--ft-enable-log-server --ft-log-server-port={nobody.getsockname()[1]} "
            f"--ft-log-server-graceful-shutdown-timeout=1 "
            f"--ft-per-cycle-applog-prefix={tmp_path}/logs/train.log"
        )
        with contextlib.ExitStack() as stack:
            launchers = [start(tmp_path, stack, node, options) for node in ("n1", "n2")]
            for launcher in launchers:
                assert launcher.finish() == 0, launcher.text
                assert "2 lines of logs did not reach the log server" in launcher.text
                assert "the log server cannot be reached" in launcher.text


def test_a_coordinator_alone_serves_logs_and_files_about_rounds(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    (tmp_path / "train.py").write_text(textwrap.dedent(SLOW))
    port = free_ports(2)
    logs = tmp_path / "logs"
    meet = f"--nnodes=2 --rdzv-endpoint=127.0.0.1:{port} --rdzv-id=job7"
    asked = (
        f"--ft-enable-log-server --ft-log-server-port={port + 1} "
        f"--ft-per-cycle-applog-prefix={logs}/train.log --ft-cycle-info-dir={tmp_path}/info"
    )
    options = f"{meet} {asked} --run-dir={tmp_path}/coordinator"
    coordinator = subprocess.Popen(
        [sys.executable, "-m", "undaunted.cli.main", "coordinator", *options.split()],
        env={**os.environ, "UNDAUNTED_TOKEN": "a token of this test"},
        stderr=subprocess.PIPE,
        text=True,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(coordinator.kill)
        assert coordinator.stderr is not None
        assert "coordinator of job" in coordinator.stderr.readline()
        options = f"{meet} {asked} --rdzv-conf=is_host=0 --worker-start=fresh"
        launchers = [start(tmp_path, stack, node, options) for node in ("n1", "n2")]
        for launcher in launchers:
            assert launcher.finish() == 0, launcher.text
        _, said = coordinator.communicate(timeout=60)
        assert coordinator.returncode == 0, said
    lines = sorted((logs / "train_cycle0.log").read_text().splitlines())
    assert lines == ["0: after 0", "0: before 0", "1: after 1", "1: before 1"]
    info = json.loads((tmp_path / "info/cycle_info.job7.current").read_text())
    assert (info["active_nodes"], info["cycle_log_file"]) == ("n[1-2]", f"{logs}/train_cycle0.log")
    assert info["cycle_end_time"]
