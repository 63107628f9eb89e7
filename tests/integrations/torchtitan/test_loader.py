"""The real trainer of torchtitan with a Loader: the same samples in each step, with fewer ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.e2e.launcher import Launcher
from undaunted.data import Loader

pytest.importorskip("torchtitan")
from tests.integrations.torchtitan.test_torchtitan import environment, write_texts

pytestmark = [
    pytest.mark.integration,
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("no_compiler"),
]

SCRIPT = str(Path(__file__).with_name("train.py"))
LIMIT_S = 180.0  # imports take long on a busy machine
STEPS, SAMPLES, GLOBAL_BATCH = 22, 44, 4  # an epoch has eleven steps

Noted = dict[int, set[tuple[tuple[int, ...], float]]]
"""Of each step, the micro-batches: their samples, and a random number."""


def launched(folder: Path, ranks: int, disturb: str = "") -> str:
    options = ["--nproc-per-node", str(ranks), "--max-restarts", "2", "--preload", "on_cpu"]
    launcher = Launcher(
        [*options, SCRIPT, "--module", "with_loader", "--config", "tiny"],
        folder,
        environment(folder, disturb),
    )
    try:
        assert launcher.finish(LIMIT_S) == 0, launcher.text
        return launcher.text
    finally:
        launcher.close()


def seen(folder: Path) -> Noted:
    """Return what was noted of each step, counted from 1. One that came again has the same."""
    steps: Noted = {}
    for file in folder.glob("samples-*"):
        for line in file.read_text().splitlines():
            step, indices, drawn = json.loads(line)
            steps.setdefault(step, set()).add((tuple(indices), drawn))
    return steps


def test_a_kill_and_then_one_rank_less(tmp_path: Path) -> None:
    write_texts(tmp_path)
    text = launched(tmp_path, 2, "kill:1:13")
    assert "1 restart" in text
    shutil.rmtree(tmp_path / "outputs" / "checkpoint" / f"step-{STEPS}")
    shutil.rmtree(tmp_path / "outputs" / "checkpoint" / "step-20")
    text = launched(tmp_path, 1)
    assert "Training starts at step 16" in text, "in the middle of the second epoch"

    loader = Loader(range(SAMPLES), global_batch=GLOBAL_BATCH, micro_batch=1, seed=1)  # type: ignore[arg-type]
    expected: Noted = {}
    for step in range(1, STEPS + 1):
        for batch in loader.step():
            noted = tuple(batch.tolist()), torch.rand(()).item()
            expected.setdefault(step, set()).add(noted)
    assert seen(tmp_path) == expected
