"""Two ranks save, and one of them, or its writer, is killed or stopped at some point.

Whatever happens, no rank waits longer than it was told to, all that live get the same error,
nothing is found that is not whole, and no process is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.said import lines_of

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "ranks_program.py"
DEADLINE_S = 90.0
AT_ONCE_S = 10.0  # less than the timeout of the ranks

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(DEADLINE_S + 30)]


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    pytest.importorskip("torch")


def run(scenario: str, directory: Path) -> dict[str, list[dict[str, Any]]]:
    """Run both ranks; return by "save" and "next" what the survivors said, and what is logged."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("UNDAUNTED")}
    inherited |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    processes = [
        warm.Popen(
            [sys.executable, str(PROGRAM), scenario, str(directory)],
            env={**inherited, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said: dict[str, list[dict[str, Any]]] = {}
    try:
        outputs = [processes[0].communicate(timeout=DEADLINE_S)]
        if "stopped while" in scenario:
            processes[1].send_signal(signal.SIGKILL)
        outputs.append(processes[1].communicate(timeout=DEADLINE_S))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for out, _ in outputs:
        for one in map(json.loads, lines_of(out)):
            said.setdefault(one["what"], []).append(one)
    assert said, outputs
    said["log"] = [{"line": line} for _, err in outputs for line in err.splitlines()]
    return said


def committed(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("step-*"))


def test_undisturbed(tmp_path: Path) -> None:
    said = run("nothing", tmp_path / "all")
    assert [one["outcome"] for one in said["save"]] == ["done", "done"]
    assert committed(tmp_path / "all") == ["step-00000001"]


@pytest.mark.parametrize("accident", ["writer killed", "writer stopped"])
def test_a_writer_is_lost(tmp_path: Path, accident: str) -> None:
    said = run(accident, tmp_path / "all")
    assert [one["ranks"] for one in said["save"]] == [[1], [1]], said
    assert all(one["seconds"] < DEADLINE_S / 2 for one in said["save"]), said
    assert [one["outcome"] for one in said["next"]] == ["done", "done"], said
    assert len([one for one in said["log"] if "(step 1)" in one["line"]]) == 1, "one for all"
    assert committed(tmp_path / "all") == ["step-00000002"]
    assert not list((tmp_path / "all").glob(".step-*"))


@pytest.mark.parametrize(
    "accident", ["killed before", "killed while saving", "stopped while saving"]
)
def test_a_rank_is_lost(tmp_path: Path, accident: str) -> None:
    (survivor,) = run(accident, tmp_path / "all")["save"]
    assert survivor["rank"] == 0
    assert survivor["ranks"] == [1], survivor
    assert survivor["seconds"] < DEADLINE_S / 2, survivor
    assert committed(tmp_path / "all") == []


def test_ranks_that_are_at_different_steps(tmp_path: Path) -> None:
    """States of different steps never make one checkpoint."""
    said = run("steps", tmp_path / "all")
    for one in said["save"]:
        assert "save of step 1" in one["outcome"], said
        assert "save of step 7" in one["outcome"], said
        assert one["seconds"] < AT_ONCE_S, said
    assert [one["outcome"] for one in said["next"]] == ["done", "done"], said
    assert committed(tmp_path / "all") == ["step-00000002"]


def test_ranks_meet_again_after_a_save_that_one_has_missed(tmp_path: Path) -> None:
    said = run("missed", tmp_path / "all")
    (alone,) = said["save"]
    assert alone["rank"] == 0
    assert alone["ranks"] == [1], said
    assert "all ranks have to call save" in alone["outcome"]
    assert [one["outcome"] for one in said["next"]] == ["done", "done"], said
    assert all(one["seconds"] < DEADLINE_S / 2 for one in said["next"]), said
    assert committed(tmp_path / "all") == ["step-00000002"]


def test_a_rank_whose_state_cannot_be_saved(tmp_path: Path) -> None:
    said = run("structure", tmp_path / "all")
    assert [one["ranks"] for one in said["save"]] == [[1], [1]], said
    assert all(one["seconds"] < AT_ONCE_S for one in said["save"]), said
    assert [one["outcome"] for one in said["next"]] == ["done", "done"], said
    assert committed(tmp_path / "all") == ["step-00000002"]
