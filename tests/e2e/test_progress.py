"""A job that restarts without advancing ends with 93; others use their budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

STEPS = """
    import os, undaunted
    for iteration in range({first}, {last} + 1):
        undaunted.step(iteration)
    raise RuntimeError("bad batch")
"""
RESTART = 'int(os.environ["TORCHELASTIC_RESTART_COUNT"])'
OPTIONS = ("--nproc-per-node", "2", "--max-restarts", "10")


def test_a_job_that_does_not_advance_ends_and_says_why(tmp_path: Path) -> None:
    with launched(tmp_path, STEPS.format(first=40, last=40), *OPTIONS) as launcher:
        assert launcher.finish() == 93, launcher.text
        launcher.wait_for(
            r"no restart, 2 restarts: no progress in 3 rounds in a row: the job was at iteration "
            r"40, then round 0 reached 40, round 1 reached 40, round 2 reached 40;"
        )
        launcher.wait_for("RuntimeError: bad batch")
        assert [d["action"] for d in launcher.events("decision")] == ["restart"] * 3 + ["end"]
        (ended,) = launcher.events("job_ended")
        assert (ended["outcome"], ended["exit_code"]) == ("no_restart", 93)
        last = launcher.events("round_progress")[-1]
        assert (last["round"], last["first_iteration"], last["last_iteration"]) == (2, 40, 40)


def test_a_job_that_advances_uses_its_whole_budget(tmp_path: Path) -> None:
    script = STEPS.format(first="0", last=RESTART)
    with launched(tmp_path, script, "--max-restarts", "4") as launcher:
        assert launcher.finish() == 1, launcher.text
        assert len(launcher.events("round_started")) == 5


def test_a_script_that_never_steps_uses_its_whole_budget(tmp_path: Path) -> None:
    with launched(tmp_path, "raise RuntimeError('x')", "--max-restarts", "5") as launcher:
        assert launcher.finish() == 1, launcher.text
        assert len(launcher.events("round_started")) == 6
        assert launcher.text.count("restarts are not checked for progress") == 1


SAVES = """
    import os, pathlib, undaunted
    undaunted.step(1000 * {restart})  # does not count beside a file
    pathlib.Path("latest.txt").write_text(str(min(50, 40 + 10 * {restart})))
    raise RuntimeError("bad batch")
"""


def test_the_file_of_the_checkpoints_is_what_counts(tmp_path: Path) -> None:
    (tmp_path / "latest.txt").write_text("40\n")
    file = ("--ft-checkpoint-iteration-file", "latest.txt", "--ft-max-no-progress-cycles", "2")
    with launched(
        tmp_path, SAVES.format(restart=RESTART), "--max-restarts", "10", *file
    ) as launcher:
        assert launcher.finish() == 93, launcher.text
        launcher.wait_for(r"was at iteration 50, then round 2 reached 50, round 3 reached 50;")


def test_off(tmp_path: Path) -> None:
    options = ("--max-restarts", "4", "--ft-max-no-progress-cycles", "0")
    with launched(tmp_path, STEPS.format(first=4, last=4), *options) as launcher:
        assert launcher.finish() == 1, launcher.text
        assert len(launcher.events("round_started")) == 5
