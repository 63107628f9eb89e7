from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed.checkpoint as dcp

from tests import warm
from tests.checkpointing.dcp import rank_program
from tests.checkpointing.dcp.saved import alone, save
from tests.checkpointing.dcp.test_saving import assert_same

pytestmark = [
    pytest.mark.torch,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*torch.distributed is"),
]

ROOT = Path(__file__).parents[3]


def run_ranks(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    ranks = [
        warm.Popen(
            [sys.executable, "-m", rank_program.__name__, str(rank), str(folder)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(rank_program.WORLD)
    ]
    try:
        outputs = [rank.communicate(timeout=rank_program.DEADLINE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    # gloo of some versions of torch says something before
    assert [out.splitlines()[-1:] for out, _ in outputs] == [["done"]] * 2, outputs


def test_worlds_of_one_and_two_read_what_the_other_has_saved(tmp_path: Path) -> None:
    model = rank_program.plain()
    optimizer = rank_program.optimizer_of(model)
    rank_program.train(model, optimizer)
    save(tmp_path / "single", {"model": model, "optimizer": optimizer})
    torch.save(rank_program.states(model, optimizer), tmp_path / "single.pt")
    run_ranks(tmp_path)
    for name in ("sharded", "replicated"):
        prefix = "module." if name == "replicated" else ""
        expected = torch.load(tmp_path / f"{name}.pt")
        for read in (ours, with_dcp):
            other = torch.nn.ModuleDict({"module": rank_program.plain()}) if prefix else None
            other = other or rank_program.plain()
            read(tmp_path / name, {"model": other})
            assert_same(rank_program.whole(other.state_dict()), expected["model"])
    other = rank_program.plain()
    fresh = rank_program.optimizer_of(other)
    ours(tmp_path / "sharded", {"model": other, "optimizer": fresh})
    expected = torch.load(tmp_path / "sharded.pt")
    assert_same(rank_program.states(other, fresh), expected)


def ours(folder: Path, state: dict[str, Any]) -> None:
    rank_program.load_it(folder, state, alone())


def with_dcp(folder: Path, state: dict[str, Any]) -> None:
    dcp.load(state, checkpoint_id=folder)
