"""Ranks over gloo: real processes, one of which does more work than the others."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.e2e]

REPOSITORY = Path(__file__).parents[3]


class Job:
    """What the ranks of a job returned, by scenario, and what was logged."""

    def __init__(self, folder: Path, ranks: int) -> None:
        program = Path(__file__).with_name("rank_program.py")
        done = subprocess.run(
            [sys.executable, str(program), str(ranks), str(folder / "store")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "OMP_NUM_THREADS": "1"},
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.log = done.stderr
        self._results = json.loads(done.stdout.splitlines()[-1])

    def results(self, scenario: str) -> list[Any]:
        return [one[scenario] for one in self._results]


@pytest.fixture(scope="module", params=[2, 4])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(tmp_path_factory.mktemp("job"), request.param)


def test_the_rank_with_more_work_is_found(job: Job) -> None:
    ((report,), *others) = job.results("slow_rank")
    assert others == [[None]] * len(others)
    slow = len(others)
    assert report["slow_in"] == {"work": [slow]}
    assert min(report["gpu"], key=report["gpu"].get) == str(slow)
    assert list(report["gpu"]) == [str(rank) for rank in range(slow + 1)]
    assert report["nodes"] == {str(rank): f"node{rank // 2}" for rank in range(slow + 1)}
    assert report["local"] == {"work": 15, "same": 15}


def test_nobody_is_found_where_all_do_the_same(job: Job) -> None:
    ((report,), *_) = job.results("undisturbed")
    assert report["slow"] == []
    assert report["slow_in"] == {}


def test_each_rank_has_its_own_scores_where_nothing_is_gathered(job: Job) -> None:
    reports = [report for (report,) in job.results("alone")]
    for rank, report in enumerate(reports):
        assert list(report["gpu"]) == [str(rank)]
        assert list(report["sections"]["work"]) == [str(rank)]
        assert len(report["nodes"]) == len(reports)
    *others, slow = reports
    assert slow["slow_in"] == {"work": [len(others)]}
    assert all(report["slow_in"] == {} for report in others)


def test_ranks_of_a_role_have_sections_of_their_own(job: Job) -> None:
    results = job.results("roles")
    for rank, (first, second) in enumerate(results):
        role, other = ("first", "second") if rank < len(results) / 2 else ("second", "first")
        assert math.isnan(first["sections"][f"of {other}"][str(rank)])
        score = first["sections"][f"of {role}"][str(rank)]
        if len(results) == 4:
            assert 0 < score <= 1
            assert 0 < first["gpu"][str(rank)] <= 1
        else:
            assert math.isnan(score), "it has no peers"
        assert list(second["sections"]) == ["later"]


def test_all_ranks_make_reports_at_the_same_step(job: Job) -> None:
    first, *others = job.results("interval")
    assert others == [first] * len(others)
    assert first


def test_all_ranks_stop_at_the_same_step(job: Job) -> None:
    assert job.results("stop") == [[16]] * len(job.results("stop"))
    assert "  Rank=1 Node=" in job.log
    assert "Affected ranks: [1]\n" in job.log
    assert "Detected stragglers. Training should be stopped." in job.log
