"""`python -m simulator`: what it prints, and its exit codes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from simulator.__main__ import main
from tests.simulator.coordination.bugs import newcomers_go_first

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = ("--nodes", "4", "--spares", "1", "--count", "4", "--faults", "crash,reset")


@pytest.fixture
def out(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    return lambda: capsys.readouterr().out


def test_one_run_names_its_faults_and_its_end(out: Callable[[], str]) -> None:
    assert main([*SMALL, "--seed", "3"]) == 0
    text = out()
    assert text.startswith("seed 3: Setup(nodes=4, spares=1")
    assert len(re.findall(r"^ +\d+\.\d{3}  (crash|reset) n00\d", text, re.MULTILINE)) == 4
    assert "the job ended as finished" in text


def test_every_step_is_a_line_below_a_legend(out: Callable[[], str]) -> None:
    assert main([*SMALL, "--seed", "3", "--steps"]) == 0
    first = out()
    assert first.startswith("# seconds  who  what")
    assert len(re.findall(r"^ +\d+\.\d{6}  \S+ ", first, re.MULTILINE)) > 200
    assert main([*SMALL, "--seed", "3", "--steps"]) == 0
    without_duration = re.compile(r"simulated in [\d.]+ s")
    assert without_duration.sub("", first) == without_duration.sub("", out())


def test_many_runs_are_summed_up(out: Callable[[], str]) -> None:
    assert main([*SMALL, "--seeds", "0:5"]) == 0
    text = out()
    assert "runs        5: 20 faults" in text
    assert "violations  0" in text


def test_a_violation_is_shown_with_how_to_see_it_again(
    out: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    newcomers_go_first(monkeypatch)
    arguments = ["--nodes", "4", "--faults", "crash", "--count", "12"]
    assert main([*arguments, "--seeds", "0:40"]) == 1
    text = out()
    (seed,) = re.findall(
        r"every event of the first: python -m simulator --nodes 4 --spares 2 --faults crash "
        r"--count 12 --seed (\d+) --steps",
        text,
    )
    assert f"seed {seed}: no healthy node is evicted" in text
    assert main([*arguments, "--seed", seed]) == 1
    text = out()
    assert text.startswith("# seconds  who  what")
    assert "VIOLATION  no healthy node is evicted" in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--nodes", "0"], "'0' is not a whole number from 1"),
        (["--seeds", "5"], "'5' is not FROM:TO"),
        (["--seeds", "5:5"], "names no seed"),
        (["--faults", "crash,meteor"], "choose from crash, hang"),
        (["--faults", ","], "choose from crash, hang"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err
