"""What the template imports while the ranks run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

# Fails until it finds that the import is done.
FINDS = r"""
    import sys, torch
    found = "torch._dynamo" in sys.modules
    sys.stdout.write(f"found {found}\n")
    sys.exit(not found)
"""
OPTIONS = ("--max-restarts", "300", "--ft-max-no-progress-cycles", "0")


def test_restarted_ranks_find_what_an_optimizer_imports(tmp_path: Path) -> None:
    with launched(tmp_path, FINDS, *OPTIONS) as launcher:
        assert launcher.finish() == 0
        launcher.wait_for("found False")
        launcher.wait_for("found True")
        modes = {event["mode"] for event in launcher.events("workers_spawned")}
        assert modes == {"warm"}


def test_a_job_does_not_wait_for_imports_that_nobody_needs_any_more(tmp_path: Path) -> None:
    with launched(tmp_path, "import torch") as launcher:
        assert launcher.finish() == 0
        (stop,) = launcher.events("stop_requested")
        (stopped,) = launcher.events("round_stopped")
        assert int(str(stopped["t"])) - int(str(stop["t"])) < 1.5e9, "less than the grace"


def test_ranks_that_cannot_need_torch_do_not_wait_for_it(tmp_path: Path) -> None:
    with launched(tmp_path, "import sys; sys.exit('torch' in sys.modules)") as launcher:
        assert launcher.finish() == 0
        (spawned,) = launcher.events("workers_spawned")
        assert spawned["mode"] == "warm"
