"""`undaunted chaos` up to where it starts something; the rest is in tests/e2e."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from undaunted.chaos.kinds import KINDS
from undaunted.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    for name in list(os.environ):
        if name.startswith("PET_"):
            monkeypatch.delenv(name)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--help"]) == 0
    assert "undaunted chaos --nproc-per-node 2 train.py" in capsys.readouterr().out


def test_all_kinds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--list-faults"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(KINDS)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no SCRIPT is given"),
        (["--faults", "kil", "train.py"], "did you mean 'kill'?"),
        (["--plan", "missing.yaml", "train.py"], "missing.yaml cannot be read"),
        (["--junit", "missing/chaos.xml", "train.py"], "its directory cannot be written to"),
        (["--html", ".", "train.py"], "--html . is a directory; name a file"),
        (["--dir", "train.py/x", "train.py"], "cannot be used: Not a directory"),
        (["--dir", ".", "train.py"], "is not empty"),
    ],
)
def test_mistakes(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", *argv]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("undaunted chaos: error: ")
    assert message in said.err


def test_nothing_is_made_for_a_command_that_cannot_run(tmp_path: Path) -> None:
    assert main(["chaos", "--plan", "missing.yaml", "train.py"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
