"""`python -m simulator --inprocess`."""

from __future__ import annotations

import pytest

from simulator.__main__ import main
from undaunted.inprocess.core.guard import RankGuard


def test_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--inprocess", "--ranks", "3", "--seed", "1", "--count", "2"]) == 0
    output = capsys.readouterr().out
    assert "seed 1: Setup(ranks=3" in output
    assert "finished" in output


def test_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--inprocess", "--ranks", "2", "--count", "0", "--steps"]) == 0
    assert "Record(call=0, epoch=0" in capsys.readouterr().out


def test_many_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--inprocess", "--ranks", "2", "--seeds", "0:5", "--faults", "raise,kill"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("runs        5: 50 faults")
    assert "violations  0" in lines


def test_a_violation(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(RankGuard, "_enter", broken)
    assert main(["--inprocess", "--ranks", "2", "--seeds", "0:2", "--count", "1"]) == 1
    output = capsys.readouterr().out
    assert "seed 0: no core raises: RuntimeError('broken')" in output
    assert "python -m simulator --inprocess --ranks 2 --count 1 --seed 0 --steps" in output
    assert main(["--inprocess", "--ranks", "2", "--seed", "0"]) == 1
    assert "VIOLATION" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--ranks", "0"], ["--faults", "fire"], ["--nodes", "2"]])
def test_wrong_arguments(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--inprocess", *wrong])
    assert error.value.code == 2
