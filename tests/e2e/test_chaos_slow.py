"""`undaunted chaos` while the network or the disk is slow: nothing fails, nothing differs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_chaos import SCRIPT, TWO, Ended, chaos
from undaunted.chaos.nemesis import slow_disk, slow_network
from undaunted.chaos.outcome import read_outcome

if TYPE_CHECKING:
    from pathlib import Path

SLOW_S = 1.0  # of 2.5, half of the least limit for hangs

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.torch,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("no_compiler"),
]


# Says how long its saves have taken: 12 MiB in the memory of a rank, written by its Checkpointer.
SAVES = """
import sys, time
import torch
import torch.distributed as dist
import undaunted
from undaunted.checkpointing import Checkpointer

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(1024, 1024)
optimizer = torch.optim.AdamW(model.parameters())
state = {"model": model, "optimizer": optimizer}
with Checkpointer(sys.argv[1]) as checkpoints:
    for step in range(checkpoints.load(state) or 0, 12):
        undaunted.step(step)
        dist.barrier()  # no rank saves before the fault has been made
        loss = model(torch.full((1, 1024), step / 12)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in (4, 10):
            began = time.monotonic()
            checkpoints.save(step + 1, state)
            checkpoints.wait()
            if dist.get_rank() == 0:
                print(f"{step=} saved in {time.monotonic() - began:.3f} s", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    pytest.importorskip("torch")


def planned(tmp_path: Path, kind: str, script: str = SCRIPT, *words: str) -> Ended:
    plan = tmp_path / "faults.yaml"
    plan.write_text(f"faults:\n  - {{kind: {kind}, rank: 1, iteration: 10, run: 1}}\n")
    return chaos(tmp_path, *TWO, "--plan", str(plan), script, *(words or ("--dir", "{dir}")))


def is_harmless(tmp_path: Path, ended: Ended) -> list[str]:
    """Check it; return what the nemesis did."""
    (verdict,) = ended.result["verdicts"]
    assert verdict["colour"] == "green", ended.text
    assert verdict["blame"]["kind"] == ""
    assert verdict["identical_from"] is not None
    outcome = read_outcome(tmp_path / "chaos" / "run-1")
    assert outcome.exit_codes == [0]
    return [note.what for note in outcome.notes]


def saved_in(tmp_path: Path) -> list[float]:
    """Return how long the saves of the disturbed run took, seconds."""
    output = (tmp_path / "chaos" / "run-1" / "output.txt").read_text()
    return [float(seconds) for seconds in re.findall(r"saved in (\S+) s", output)]


def test_a_slow_network(tmp_path: Path) -> None:
    if reason := slow_network.not_possible():
        pytest.skip(reason)

    made = is_harmless(tmp_path, planned(tmp_path, "slow-network"))

    # Without the fault, the program would have been over before it was lifted.
    assert made == ["slowed", "lifted"]


def test_a_slow_disk(tmp_path: Path) -> None:
    if reason := slow_disk.not_possible(tmp_path):
        pytest.skip(reason)

    script = tmp_path / "saves.py"
    script.write_text(SAVES)

    made = is_harmless(tmp_path, planned(tmp_path, "slow-disk", str(script), "{dir}"))

    assert made == ["slowed", "lifted"]
    before, meanwhile = saved_in(tmp_path)
    assert meanwhile > max(SLOW_S, before)


def test_a_slow_disk_where_none_can_be_made(tmp_path: Path) -> None:
    reason = slow_disk.not_possible(tmp_path)
    if not reason:
        pytest.skip("this machine can make a slow disk")

    ended = planned(tmp_path, "slow-disk")

    (verdict,) = ended.result["verdicts"]
    assert verdict["colour"] == "skipped"
    assert reason in verdict["skipped"]
    assert ended.code == 2
