"""examples/minimal: what survives a crash with next to nothing of ours in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.launchers import source_path

ROOT = Path(__file__).parents[2]


@pytest.mark.e2e
@pytest.mark.torch
@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("program", ["train.py", "sections.py"])
def test_minimal_example_survives_a_crash(tmp_path: Path, program: str) -> None:
    pytest.importorskip("torch")
    launcher = [sys.executable, "-m", "undaunted.cli.main", "run", "--nproc-per-node=2"]
    fault = ["--max-restarts=1", "--inject-fault", "sigkill:rank=1,iteration=55"]
    done = subprocess.run(
        [*launcher, *fault, str(ROOT / "examples" / "minimal" / program)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source_path()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("step 49:") == 1  # before the crash; not done again
    assert done.stdout.count("step 59:") == 1  # after it
    assert done.stdout.count("step 99:") == 1
