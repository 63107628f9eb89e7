"""A training loop in a session: told to stop, and started again, it goes on where it was."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.e2e.launcher import launched

EXAMPLE = Path(__file__).parents[2] / "examples" / "session" / "train.py"

pytestmark = [pytest.mark.e2e, pytest.mark.torch]


def test_it_stops_in_order_and_goes_on(tmp_path: Path) -> None:
    script = EXAMPLE.read_text()
    with launched(tmp_path, script, "--nproc-per-node", "2", args=("checkpoints",)) as launcher:
        launcher.wait_for("rank 1 starts at step 0")
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish() == 75, launcher.text
    stopped = re.findall(r"rank \d stopped after step (\d+)", launcher.text)
    assert len(stopped) == 2
    assert len(set(stopped)) == 1
    shutil.rmtree(tmp_path / "run")
    with launched(tmp_path, script, "--nproc-per-node", "2", args=("checkpoints",)) as launcher:
        launcher.wait_for(f"rank 0 starts at step {int(stopped[0]) + 1}$")
        assert launcher.finish() == 0, launcher.text
