"""Faults that ranks make themselves, under a real launcher: what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120), pytest.mark.usefixtures("no_compiler")]

STEPS = 10
TORN = 6

SAVING = f"""
    import os
    from pathlib import Path

    import undaunted

    saved = Path("saved")
    first = int(saved.read_bytes()[:2]) if saved.exists() else 0
    print("from", first, flush=True)
    for step in range(first, {STEPS}):
        undaunted.step(step)
        new = Path("saved.new")
        new.write_bytes(b"%02d" % (step + 1) + bytes(200_000))
        os.replace(new, saved)
"""


def test_a_slow_rank_is_nobodys_fault_and_a_torn_write_is_named(tmp_path: Path) -> None:
    faults = f"slow:rank=0,iteration=2,steps=2,seconds=0.1;torn-write:rank=0,iteration={TORN}"
    options = ("--nproc-per-node", "1", "--max-restarts", "1", "--inject-fault", faults)
    with launched(tmp_path, SAVING, *options) as launcher:
        assert launcher.finish() == 0, launcher.text
        happened = [one["text"] for one in launcher.events("rank_event") if one["name"] == "fault"]
    assert happened == ["slow-1", "torn-write-2"]
    assert launcher.text.count("killed by SIGXFSZ") == 1
    assert [line for line in launcher.seen if line.startswith("from")] == ["from 0", f"from {TORN}"]
    # The file that was being written is there in part, until it is written anew.
    assert (tmp_path / "saved").stat().st_size == 200_002


def test_nan_in_the_gradients_of_one_update(tmp_path: Path) -> None:
    script = """
        import torch

        import undaunted

        weight = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for step in range(4):
            undaunted.step(step)
            optimizer.zero_grad()
            weight.sum().backward()
            before = weight.isfinite().all().item()
            optimizer.step()
            print("step", step, before, weight.isfinite().all().item(), flush=True)
    """
    fault = "nan:rank=0,iteration=2"
    with launched(tmp_path, script, "--nproc-per-node", "1", "--inject-fault", fault) as launcher:
        assert launcher.finish() == 0, launcher.text
    steps = [line for line in launcher.seen if line.startswith("step")]
    assert steps == [
        "step 0 True True",
        "step 1 True True",
        "step 2 True False",
        "step 3 False False",
    ]
