"""DDP that saves beside training, and goes on from there on another number of ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.launchers import source_path

EXAMPLE = Path(__file__).parents[2] / "examples" / "checkpoint" / "async_ddp.py"
DEADLINE_S = 150

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.torch,
    pytest.mark.timeout(2 * DEADLINE_S + 30),
    pytest.mark.usefixtures("no_compiler"),
]


def launched(tmp_path: Path, *options: str) -> str:
    """What the launcher and its ranks have printed."""
    ended = subprocess.run(
        [sys.executable, "-m", "undaunted.cli.main", "run", *options, str(EXAMPLE), "checkpoints"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source_path(), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.mark.slow
def test_the_newest_finished_checkpoint_is_loaded_on_any_number_of_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = launched(tmp_path, "--nproc-per-node=2")
    assert "starting at step 0" in text
    assert "done, saved step 100" in text
    metadata = tmp_path / "checkpoints" / "step-100" / ".metadata"
    metadata.unlink()  # as if the job had died just before
    text = launched(tmp_path, "--nproc-per-node=1")
    assert "starting at step 80" in text
    assert metadata.exists()
