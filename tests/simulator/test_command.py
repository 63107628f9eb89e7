"""`python -m simulator`: what it prints, and its exit codes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from simulator.__main__ import main
from simulator.command import Summary
from simulator.run import Result
from tests.simulator.coordination.bugs import newcomers_go_first
from undaunted.inprocess.core.guard import RankGuard

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
    assert "jobs ended: 1 finished" in text


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


def test_runs_are_summed_up_and_violations_grouped() -> None:
    summary = Summary("rounds", "jobs")
    summary.add(Result(0, ends={"finished": 1}, seconds=1800, lost_s=0.0, rounds=2))
    summary.add(Result(1, ends={"gave up (beyond help)": 1}, seconds=1800, rounds=1))
    for seed in range(2, 12):
        summary.add(Result(seed, problem="the budget: 3 of 2", ends={"failed": 1}))
    assert (summary.failures, summary.first_failed) == (10, 2)
    assert summary.lines() == [
        "runs        12: 0 faults, 3 rounds, 0 take-overs, 0 events",
        "time        1.0 h simulated; of a job, half lost up to 0.0 s",
        "jobs ended  10 failed, 1 finished, 1 gave up (beyond help)",
        "violations  10",
        "  the budget: 10 (seeds 2, 3, 4, 5, 6, 7, 8, 9, ...)",
    ]


# --- in-process restart ---------------------------------------------------------------------------


def test_inprocess_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--inprocess", "--ranks", "3", "--seed", "1", "--count", "2"]) == 0
    output = capsys.readouterr().out
    assert "seed 1: Setup(ranks=3" in output
    assert "finished" in output


def test_inprocess_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--inprocess", "--ranks", "2", "--count", "0", "--steps"]) == 0
    assert "Record(call=0, epoch=0" in capsys.readouterr().out


def test_inprocess_many_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--inprocess", "--ranks", "2", "--seeds", "0:5", "--faults", "raise,kill"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("runs        5: 50 faults")
    assert "violations  0" in lines


def test_inprocess_a_violation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_inprocess_wrong_arguments(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--inprocess", *wrong])
    assert error.value.code == 2
