"""The stage, with a rank that is its own launcher: no launcher is needed to test it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

from benchmarks import stage as stage_module
from benchmarks.cases import PLAIN
from benchmarks.launchers import Job, Launcher
from benchmarks.stage import Stage, StageError

if TYPE_CHECKING:
    from collections.abc import Sequence

ENV = {"RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0"}


def stage(command: Sequence[str] = (sys.executable, str(PLAIN)), ranks: int = 1) -> Stage:
    launcher = Launcher("torchrun", lambda job: list(command), env=ENV)
    return Stage(launcher, Job(PLAIN, ranks))


def with_player(code: str) -> list[str]:
    """Return the command of a program that can import the workloads' player."""
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(PLAIN.parent)!r}); {code}"]


def test_times_of_a_run_are_in_order() -> None:
    before = time.monotonic_ns()
    with stage() as run:
        line = run.all_lines(0)
        rank_ended, launcher_ended = run.finish(0)
    assert before < run.started_ns < line < rank_ended
    assert abs(launcher_ended - rank_ended) < 5e9
    assert launcher_ended < time.monotonic_ns()


def test_a_rank_that_kills_itself_says_when() -> None:
    with stage() as run:
        line = run.all_lines(0)
        run.tell(0, 0, "kill")
        assert line < run.said(0, 0, "dying") < run.died(0, 0)
        with pytest.raises(StageError, match=r"ended with -9 before the first lines of round 1"):
            run.all_lines(1)


def test_an_exception_of_a_rank_is_in_the_error_with_its_output() -> None:
    with stage() as run:
        run.all_lines(0)
        run.tell(0, 0, "raise")
        run.said(0, 0, "dying")
        with pytest.raises(StageError, match=r"(?s)ended with 1 .*asked for this exception"):
            run.all_lines(1)


def test_an_exit_code_other_than_0_is_an_error() -> None:
    with stage(with_player(f"exec(open({str(PLAIN)!r}).read()); sys.exit(3)")) as run:
        run.all_lines(0)
        with pytest.raises(StageError, match=r"it ended with exit code 3"):
            run.finish(0)


def test_beats_until_told_to_exit() -> None:
    with stage() as run:
        line = run.all_lines(0)
        run.tell(0, 0, "beat 60")
        assert run.said(0, 0, "beating") > line
        run.finish(0)


def test_a_rank_that_hangs_says_when_and_is_ended_with_the_stage() -> None:
    with stage() as run:
        run.all_lines(0)
        run.tell(0, 0, "beat 60")
        run.said(0, 0, "beating")
        run.tell(0, 0, "hang")
        run.said(0, 0, "hanging")
    assert run._process.returncode == -15


def test_waiting_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "DEADLINE_S", 0.01)
    with stage(["sleep", "60"]) as run, pytest.raises(StageError, match=r"waited 0.01 s for the"):
        run.all_lines(0)
    assert run._process.returncode == -15


def test_a_launcher_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "STOP_S", 0.05)
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    with stage(with_player(f"{ignore}; exec(open({str(PLAIN)!r}).read())")) as run:
        run.all_lines(0)
        run.tell(0, 0, "beat 60")
        run.said(0, 0, "beating")
        run.tell(0, 0, "hang")
        run.said(0, 0, "hanging")
    assert run._process.returncode == -9


def test_a_launcher_that_does_not_exist_leaves_nothing_open() -> None:
    with pytest.raises(FileNotFoundError), stage(["/nonexistent/launcher"]):
        pass


def test_watching_a_launcher_that_ends_is_an_error() -> None:
    with stage(["true"]) as run, pytest.raises(StageError, match="ended early"):
        run.watch_for(10)
