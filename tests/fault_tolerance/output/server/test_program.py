"""The log server as processes, and what happens to them."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.fault_tolerance.output.server.serving import DEADLINE_S, TOKEN, config, sender
from tests.ports import free_ports
from undaunted.fault_tolerance.nodes_config import Nodes
from undaunted.fault_tolerance.output.server.program import Task
from undaunted.fault_tolerance.output.server.sender import SentFile

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e
LINE = b"x" * 99 + b"\n"


@contextlib.contextmanager
def program(tmp_path: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    token_file = tmp_path / "token"
    if not token_file.exists():
        token_file.touch(0o600)
        token_file.write_bytes(TOKEN)
    nodes = Nodes(
        min_nodes=2,
        max_nodes=2,
        endpoints=["127.0.0.1:1"],
        is_host=True,
        address="127.0.0.1",
        token_file=str(token_file),
    )
    chosen = config(tmp_path / "logs", port=port, grace_s=10.0)
    task = Task(run_id="job", nodes=nodes, config=chosen)
    command = [sys.executable, "-m", "undaunted.fault_tolerance.output.server.program"]
    with subprocess.Popen(
        [*command, msgspec.json.encode(task).decode()], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()


def write_numbers(file: SentFile, first: int, last: int, pieces: int = 1) -> None:
    for number in range(first, last, pieces):
        file.write([b"".join(b"%08d\n" % n for n in range(number, number + pieces))])
        while file.blocked:
            file.flush()


def test_killed_and_started_again_nothing_is_missing(tmp_path: Path) -> None:
    port = free_ports(1)
    log = tmp_path / "logs/log"
    with sender(port, tmp_path / "token") as one:
        file = SentFile(one, "log", lambda: 0)
        writing = threading.Thread(target=write_numbers, args=(file, 0, 2_000_000, 20_000))
        with program(tmp_path, port) as first:
            writing.start()
            deadline = time.monotonic() + DEADLINE_S
            while not (log.exists() and log.stat().st_size > 1_000_000):
                assert time.monotonic() < deadline
                writing.join(0.01)
            first.kill()
            first.wait(DEADLINE_S)
        assert writing.is_alive()
        with program(tmp_path, port) as second:
            writing.join(DEADLINE_S)
            one.close(DEADLINE_S)
            second.send_signal(signal.SIGTERM)
            assert second.wait(DEADLINE_S) == 0
    lines = log.read_bytes().splitlines()
    numbers = [int(line) for line in lines if len(line) == 8 and line.isdigit()]
    assert set(numbers) == set(range(2_000_000))
    others = [line for line in lines if not (len(line) == 8 and line.isdigit())]
    notes = [line for line in others if line.startswith(b"[undaunted] the log server was started")]
    assert len(others) <= len(notes) + 1  # a line that was being written may be there in part
    again = next((i for i in range(1, len(numbers)) if numbers[i] <= numbers[i - 1]), len(numbers))
    assert numbers[:again] == list(range(again))
    assert numbers[again:] == list(range(*(numbers[again : again + 1] or [2_000_000]), 2_000_000))


def test_a_flood_gets_through_and_memory_is_bounded(tmp_path: Path) -> None:
    port = free_ports(1)
    piece = LINE * 2500
    with program(tmp_path, port) as server:
        with sender(port, tmp_path / "token") as one:
            file = SentFile(one, "log", lambda: 0)
            for _ in range(800):  # 200 MB
                file.write([piece])
                while file.blocked:
                    file.flush()
            one.close(DEADLINE_S)
        status = Path(f"/proc/{server.pid}/status").read_text()
        peak_kib = int(next(x for x in status.splitlines() if x.startswith("VmHWM")).split()[1])
    assert (tmp_path / "logs/log").stat().st_size == 800 * len(piece)
    assert peak_kib < 120 * 1024


def test_the_port_of_another_one_is_waited_for(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with program(tmp_path, port) as server:
            with pytest.raises(subprocess.TimeoutExpired):
                server.wait(0.3)
            taken.close()
            with sender(port, tmp_path / "token") as one:
                assert one.put("log", b"a\n", DEADLINE_S)
                one.close(DEADLINE_S)
    assert (tmp_path / "logs/log").read_bytes() == b"a\n"
