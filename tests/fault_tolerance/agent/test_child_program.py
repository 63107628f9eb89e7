"""A program at the other end of a socket."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

import pytest

from undaunted.base import process
from undaunted.fault_tolerance.agent.child_program import ChildProgram

if TYPE_CHECKING:
    from pathlib import Path

ECHO = """
import os, socket, sys
with socket.socket(fileno=int(sys.argv[1])) as sock:
    sock.send(os.environ["GREETING"].encode() + sock.recv(10))
    sock.recv(10)
"""


def test_it_is_asked_and_ended(tmp_path: Path) -> None:
    path = tmp_path / "echo.py"
    path.write_text(ECHO)
    child = ChildProgram(str(path), {"GREETING": "hello "})
    child.sock.send(b"you")
    assert select.select([child.sock], [], [], 30)[0]
    assert child.sock.recv(20) == b"hello you"
    assert child.is_alive()
    assert not child.reap()
    child.kill()
    os.waitpid(child.pid, 0)
    assert child.reap()
    assert not child.is_alive()
    child.kill()  # nothing is left to be ended


def test_it_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError("no more processes")

    monkeypatch.setattr(process, "spawn", refuse)
    with pytest.raises(OSError, match="no more processes"):
        ChildProgram("x", {})
