"""How a rank gets its guard: errors. That it works is shown in test_program."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.ports import free_ports
from undaunted.inprocess.core.messages import Limits
from undaunted.inprocess.exception import InternalError
from undaunted.inprocess.guard import start as module
from undaunted.inprocess.guard.start import VARIABLE, Options, connect

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.fixture
def agent():
    name = f"undaunted-test-{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        yield name


def test_under_our_launcher_the_agent_is_the_guard(agent: str) -> None:
    guard = connect(Options(0, 2), environ={VARIABLE: agent})
    with guard.sock as sock:
        assert sock.gettimeout() is None
        assert sock.getpeername() == b"\0" + agent.encode()
    assert guard.pid == os.getpid()  # who listens
    assert not guard.own


def test_an_agent_that_is_not_there(agent: str) -> None:
    with pytest.raises(InternalError, match=f"rank 3: the agent .* {VARIABLE}"):
        connect(Options(3, 4), environ={VARIABLE: f"{agent}x"})


def test_an_agent_of_another_user(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undaunted.inprocess.guard.start.os.geteuid", lambda: -1)
    with pytest.raises(InternalError, match=f"user {os.getuid()} listens there"):
        connect(Options(0, 2), environ={VARIABLE: agent})


def test_a_guard_that_cannot_be_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/missing/python")
    with pytest.raises(InternalError, match=r"the guard cannot be started: .*missing"):
        connect(Options(0, 1), environ={})


@pytest.mark.e2e
def test_a_guard_that_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(InternalError, match="rank 0: its guard has ended before it was ready"):
        connect(Options(0, 1), environ={})
    _wait()


@pytest.mark.e2e
def test_a_guard_that_says_nothing_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_execute", lambda listening, _: kept.append(listening.dup()))
    monkeypatch.setattr(module, "_BEYOND_S", 0.01)
    kept: list[socket.socket] = []
    with pytest.raises(InternalError, match="its guard is not ready after 0 s"):
        connect(Options(0, 1, limits=Limits(barrier_timeout=0.0)), environ={})
    kept[0].close()


@pytest.mark.e2e
def test_a_program_that_ends_while_a_rank_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    execute, ended = module._execute, []

    def end_first(listening: socket.socket, environ: Mapping[str, str]) -> None:
        if ended:
            execute(listening, environ)
        ended.append(listening)

    monkeypatch.setattr(module, "_execute", end_first)
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1))}
    connect(Options(0, 2, limits=Limits(barrier_timeout=0.0)), environ=environ).sock.close()
    assert len(ended) == 2
    _wait()


@pytest.mark.e2e
def test_where_another_user_listens_a_rank_has_a_program_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = []

    def check(sock: socket.socket) -> None:
        names.append(sock.getpeername())
        if names.count(names[0]) == len(names):
            raise PermissionError("user -1 listens there")

    monkeypatch.setattr(module, "check_own", check)
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1))}
    connect(Options(0, 2, limits=Limits(barrier_timeout=0.0)), environ=environ).sock.close()
    _wait()


CLOSED = """
import sys
from pathlib import Path
from undaunted.inprocess.guard.start import Options, connect, _programs
connect(Options(0, 1, logfile=sys.argv[1])).sock.close()
Path(sys.argv[2]).write_text(str(_programs[0].wait(60)))
"""


@pytest.mark.e2e
def test_a_rank_whose_standard_streams_are_closed(tmp_path: Path) -> None:
    code, log = tmp_path / "code", tmp_path / "log"
    argv = [sys.executable, "-c", CLOSED, str(log), str(code)]
    closing = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([*closing, *argv], env=environ, timeout=60).returncode == 0
    assert code.read_text() == "0"
    assert log.exists()


def _wait() -> None:
    for program in module._programs:
        program.wait(60)
    module._programs.clear()
