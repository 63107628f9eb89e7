"""Being installed by the environment, and what `undaunted.step` does then."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import undaunted
from undaunted.digests.install import install
from undaunted.digests.record import STEP, read_records
from undaunted.progress import api

if TYPE_CHECKING:
    from pathlib import Path


def test_without_the_variable_nothing_is_installed() -> None:
    assert install({}) is None
    assert api.on_step is None


def test_steps_are_recorded_until_it_ends(tmp_path: Path) -> None:
    end = install(
        {
            "UNDAUNTED_DIGESTS": str(tmp_path / "new" / "digests"),
            "RANK": "5",
            "TORCHELASTIC_RESTART_COUNT": "1",
        }
    )
    assert end is not None
    try:
        undaunted.step(2, digest={"loss": 0.5})
        if (child := os.fork()) == 0:
            undaunted.step(3, digest={"loss": 0.5})
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        end()
    undaunted.step(4, digest={"loss": 0.5})
    ((rank, (one,)),) = read_records(tmp_path / "new" / "digests").by_rank.items()
    assert (rank, one.round, one.iteration, one.at) == (5, 1, 2, STEP)
    assert api.on_step is None


def test_without_a_place_training_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert install({"UNDAUNTED_DIGESTS": str(tmp_path / "file" / "x")}) is None
    assert "rank 0: its state is not recorded" in capfd.readouterr().err


def test_torch_is_not_imported_by_us_and_watched_when_it_is(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = """
import sys
from undaunted.digests.install import install
install()
assert "torch" not in sys.modules
import torch
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""
    environment = {**os.environ, "UNDAUNTED_DIGESTS": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, check=True)
    assert [one.iteration for one in read_records(tmp_path).by_rank[0]] == [0, 0, 1, 1]
