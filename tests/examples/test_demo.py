from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.launchers import source_path
from examples.char_lm import demo
from examples.char_lm.demo import Run, judge, show

if TYPE_CHECKING:
    from collections.abc import Sequence

VERDICTS = [
    {"event": "verdict", "kind": "crash", "rank": 1},
    {"event": "verdict", "kind": "hang", "rank": 0},
]


def run(
    directory: Path, digest: str = "abc", code: int = 0, events: Sequence[object] = VERDICTS
) -> Run:
    (directory / "run").mkdir(parents=True)
    if digest:
        (directory / "digest").write_text(digest + "\n")
    lines = [json.dumps(event) + "\n" for event in [{"event": "job_started"}, *events]]
    (directory / "run" / "journal-a.jsonl").write_text("".join(lines))
    return Run(directory, code)


def test_everything_as_promised(tmp_path: Path) -> None:
    assert judge(run(tmp_path / "calm", events=[]), run(tmp_path / "stormy"), 0) == []


def test_other_parameters_are_a_problem(tmp_path: Path) -> None:
    (problem,) = judge(run(tmp_path / "a"), run(tmp_path / "b", "abd"), 0)
    assert problem == "the parameters differ: sha256 abc, with faults abd"


def test_missing_parameters_are_a_problem(tmp_path: Path) -> None:
    (problem,) = judge(run(tmp_path / "a"), run(tmp_path / "b", ""), 0)
    assert "with faults none" in problem
    (problem,) = judge(run(tmp_path / "c", ""), run(tmp_path / "d", ""), 0)
    assert problem == "the undisturbed run left no parameters"


def test_exit_codes_are_judged(tmp_path: Path) -> None:
    problems = judge(run(tmp_path / "a", code=1), run(tmp_path / "b", code=75), 2)
    assert problems == [
        "the undisturbed run ended with exit code 1 instead of 0",
        "the disturbed run ended with exit code 75 instead of 0",
        "`undaunted report` ended with exit code 2",
    ]


@pytest.mark.parametrize("events", [[], VERDICTS[:1], VERDICTS[::-1], [*VERDICTS, VERDICTS[0]]])
def test_other_verdicts_are_a_problem(tmp_path: Path, events: list[object]) -> None:
    (problem,) = judge(run(tmp_path / "a"), run(tmp_path / "b", events=events), 0)
    assert "instead of [('crash', 1), ('hang', 0)]" in problem


def test_lines_are_shown_with_their_time_and_a_remark(capsys: pytest.CaptureFixture[str]) -> None:
    show("undaunted: injected fault sigkill:rank=1", 5.849)
    show("[undaunted] rank 1 was killed; injected fault sigkill-1", 6)
    show("step 20/200", 12)
    first, remark, verdict, second = capsys.readouterr().out.splitlines()
    assert first == "  5.85 s | undaunted: injected fault sigkill:rank=1"
    assert "rank 1 has just been killed" in remark
    assert verdict.startswith("  6.00 s | [undaunted]")
    assert second == " 12.00 s | step 20/200"


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.torch
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("no_compiler")
def test_demo_keeps_its_promises(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, str(Path(demo.__file__))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source_path(), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stdout
    for remark in demo.REMARKS.values():  # the words they wait for are other people's
        assert remark in done.stdout
    assert "the same, bit for bit" in done.stdout
    (scratch,) = tmp_path.glob("undaunted-demo-*")  # torch leaves things there too
    assert f"stay in {scratch}." in done.stdout
    assert (scratch / "stormy" / "run" / "stacks-round1.txt").exists()
