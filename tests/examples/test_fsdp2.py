"""A sharded model is saved by two ranks and goes on with one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.launchers import source_path

EXAMPLE = Path(__file__).parents[2] / "examples" / "checkpoint" / "fsdp2.py"
DEADLINE_S = 150

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.torch,
    pytest.mark.timeout(2 * DEADLINE_S + 30),
    pytest.mark.usefixtures("no_compiler"),
]


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    pytest.importorskip("torch")


def run(tmp_path: Path, ranks: int, *arguments: str) -> str:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "undaunted.cli.main", "run", "--nproc-per-node", str(ranks)),
            *(str(EXAMPLE), "--dir", str(tmp_path / "checkpoints"), *arguments),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source_path(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_another_number_of_ranks_goes_on(tmp_path: Path) -> None:
    first = run(tmp_path, 2, "--steps", "20")
    assert "starting after step 0" in first
    second = run(tmp_path, 1, "--steps", "30")
    assert "starting after step 20" in second
    names = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert names == ["step-00000020", "step-00000030"]
