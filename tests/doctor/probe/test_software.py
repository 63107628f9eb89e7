from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from undaunted.doctor import probes as software
from undaunted.doctor.probes import Children, Said, of_software, parse_lines

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for the program that asks."""
    path = tmp_path / "program.py"
    monkeypatch.setattr(software, "SOFTWARE_PROGRAM", path)
    return path


def found() -> tuple[dict[str, str], str, str]:
    with Children() as children:
        return of_software(children, sys.executable)


def test_later_lines_count_more() -> None:
    lines = b'{"versions": {"torch": "2.9"}}\nnoise\n{"versions": {"torch": "2.9+cpu"}}\n'
    assert parse_lines(lines) == ({"torch": "2.9+cpu"}, 2)


@pytest.mark.parametrize("output", [b"", b"\xff\n", b"[1]\n", b'{"versions": {"a": 1}}\n', b"{}\n"])
def test_what_cannot_be_read(output: bytes) -> None:
    assert parse_lines(output) == ({}, 0)


def test_an_import_that_crashes(program: Path) -> None:
    program.write_text(
        "import os, signal\n"
        """print('{"versions": {"torch": "2.9"}}', flush=True)\n"""
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    assert found() == ({"torch": "2.9"}, "killed by SIGSEGV", "")


def test_an_interpreter_that_says_nothing(program: Path) -> None:
    program.write_text("")
    assert found() == ({}, "", f"{sys.executable} has said nothing")


def test_an_import_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said(b'{"versions": {"torch": "2.9"}}\n', "no answer within 1 min 00 s", late=True)
    with Children() as children:
        monkeypatch.setattr(children, "ask", lambda argv, deadline_s: said)
        found = of_software(children, sys.executable)
    assert found == ({"torch": "2.9"}, "", "import of torch: no answer within 1 min 00 s")


def test_no_interpreter() -> None:
    with Children() as children:
        found = of_software(children, "/no/such/python")
    assert found == ({}, "", "cannot be started: No such file or directory")
