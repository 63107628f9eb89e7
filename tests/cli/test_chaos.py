"""`undaunted chaos` up to where it starts something; the rest is in tests/e2e."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from undaunted.chaos.checker.values import Defect, Judgement
from undaunted.chaos.plan import Planned
from undaunted.chaos.result import Result
from undaunted.cli import chaos
from undaunted.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    from undaunted.chaos.checker.values import Colour

DEFECT = Defect("did-not-recover", "red", "it ended with 1")


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    for name in list(os.environ):
        if name.startswith("PET_"):
            monkeypatch.delenv(name)


class Done:
    """A campaign that is over: one fault was judged, of this colour."""

    colour: Colour = "green"
    plan = None

    def __init__(self, *_: object) -> None:
        fault = Planned(id="f1", kind="kill", rank=0, iteration=3, run=1)
        verdict = Judgement(fault=fault, colour=self.colour, launch=0, findings=(DEFECT,))
        self.result = Result(verdicts=[verdict])

    def run(self) -> None:
        pass


@pytest.mark.parametrize(("colour", "code"), [("green", 2), ("red", 1)])
@pytest.mark.parametrize("option", ["--junit", "--html"])
@pytest.mark.parametrize("shown", [[], ["--json"]])
def test_a_file_that_cannot_be_written_does_not_take_the_verdicts_along(
    colour: Colour,
    code: int,
    option: str,
    shown: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chaos, "Campaign", Done)
    monkeypatch.setattr(Done, "colour", colour)
    other = "--html" if option == "--junit" else "--junit"
    files = [option, "/dev/full", other, str(tmp_path / "other")]
    assert main(["chaos", *shown, *files, "train.py"]) == code
    said = capsys.readouterr()
    assert colour in said.out
    assert "/dev/full cannot be written" in said.err
    assert (tmp_path / "other").exists()


def test_nothing_is_made_for_a_command_that_cannot_run(tmp_path: Path) -> None:
    assert main(["chaos", "--plan", "missing.yaml", "train.py"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
