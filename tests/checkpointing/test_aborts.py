"""Aborts at random moments of a save: no crash, nothing is committed afterwards, all loads.

``UNDAUNTED_ABORTS=200`` makes so many for each size of the job, ``UNDAUNTED_ABORTS_SEED`` others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests import warm
from tests.checkpointing import aborts_program
from tests.said import lines_of

ROOT = Path(__file__).parents[2]
COUNT = int(os.environ.get("UNDAUNTED_ABORTS", "10"))
SEED = int(os.environ.get("UNDAUNTED_ABORTS_SEED", "1"))
DEADLINE_S = 120.0 + 30.0 * COUNT

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(DEADLINE_S + 30)]


@pytest.mark.parametrize("world_size", [1, 4])
def test_aborts(tmp_path: Path, world_size: int) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UNDAUNTED")}
    environment |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    words = [str(world_size), str(tmp_path / "all"), str(SEED), str(COUNT)]
    ranks = [
        warm.Popen(
            [sys.executable, "-m", aborts_program.__name__, str(rank), *words],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [rank.communicate(timeout=DEADLINE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    failed = {n: outputs[n][1][-3000:] for n, rank in enumerate(ranks) if rank.returncode != 0}
    assert not failed, "\n".join(f"rank {n}: {text}" for n, text in failed.items())
    least = COUNT // len(aborts_program.PHASES)
    for out, _ in outputs:
        counts = json.loads("".join(lines_of(out)))
        assert sum(counts.values()) == COUNT
        assert all(counts.get(phase, 0) >= least for phase in aborts_program.PHASES), counts
    print(f"{world_size} ranks, seed {SEED}: {counts}")  # shown with -s
