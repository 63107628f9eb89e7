"""Processes that run on outside of the tree."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.agent.round import leftovers
from undaunted.fault_tolerance.agent.round.leftovers import Leftover

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PID = 12345


def proc(root: Path, *, environ: bytes, cmdline: bytes = b"python\0serve.py\0") -> Path:
    """A made-up /proc with one process."""
    (root / str(PID)).mkdir()
    (root / str(PID) / "environ").write_bytes(environ)
    (root / str(PID) / "cmdline").write_bytes(cmdline)
    (root / "meminfo").touch()
    return root


def test_a_process_with_the_variable_is_found(tmp_path: Path) -> None:
    root = proc(tmp_path, environ=b"A=1\0UNDAUNTED_RUN_DIR=/run/1\0")
    assert leftovers.find("UNDAUNTED_RUN_DIR", "/run/1", [], root) == [
        Leftover(PID, "python serve.py")
    ]


def test_another_run_and_our_own_processes_are_not(tmp_path: Path) -> None:
    root = proc(tmp_path, environ=b"UNDAUNTED_RUN_DIR=/run/10\0X=UNDAUNTED_RUN_DIR=/run/1\0")
    assert leftovers.find("UNDAUNTED_RUN_DIR", "/run/1", [], root) == []
    assert leftovers.find("UNDAUNTED_RUN_DIR", "/run/10", [PID], root) == []


def test_a_process_that_ends_meanwhile_or_is_not_ours(tmp_path: Path) -> None:
    root = proc(tmp_path, environ=b"UNDAUNTED_RUN_DIR=/run/1\0")
    (root / str(PID) / "environ").unlink()
    assert leftovers.find("UNDAUNTED_RUN_DIR", "/run/1", [], root) == []


def test_what_is_below_us_is_no_leftover(tmp_path: Path) -> None:
    env = {**os.environ, "UNDAUNTED_RUN_DIR": str(tmp_path)}
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env)
    with child:
        found = leftovers.find("UNDAUNTED_RUN_DIR", str(tmp_path), [])
        assert [each.pid for each in found] == [child.pid]
        assert found[0].command.endswith("-c input()")
        assert leftovers.of_round(str(tmp_path)) == []
        child.kill()


def test_a_line_names_ten_of_them() -> None:
    found = [Leftover(pid, "x") for pid in range(1, 13)]
    assert leftovers.describe(found[:2]) == "1 (x), 2 (x)"
    assert leftovers.describe(found).endswith("10 (x) and 2 more")


def test_a_line_about_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "of_round", lambda run_dir: [Leftover(1, run_dir)])
    assert leftovers.line("x", 3).startswith("round 3 left processes behind")
    assert leftovers.line("x", 3).endswith("1 (x)")
    monkeypatch.setattr(leftovers, "of_round", lambda run_dir: [])
    assert leftovers.line("x", 3) == ""
