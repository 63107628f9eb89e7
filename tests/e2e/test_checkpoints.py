"""Checkpoints of ranks that are killed: what was copied is not lost with the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.torch]


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    pytest.importorskip("torch")


TWO = ("--nproc-per-node", "2")
SLOW = ("slow",)

# Rank 1 is killed in round 0 when all have copied their state; the writer is too slow to have
# written it by then.
TRAINING = """
    import logging, os, signal, sys, threading
    import torch, torch.distributed as dist
    from undaunted.checkpointing import Checkpointer, PerRank

    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    rank, first = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    slow = sys.argv[1:] == ["slow"]
    torch.manual_seed(0)
    model = torch.nn.Linear(300, 300)
    state = {"model": model, "names": PerRank([f"rank {rank}"])}
    checkpoints = Checkpointer(
        "checkpoints", timeout=60, slots=2, bandwidth=1e4 if first and slow else None
    )
    step = checkpoints.load(state) or 0
    print(f"rank {rank} begins after step {step}: {model.bias.sum().item():.4f}", flush=True)
    if first:
        for step in (1, 2):
            torch.nn.init.constant_(model.bias, step)
            checkpoints.save(step, state)
            if not slow:
                checkpoints.wait()
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait(100)
    checkpoints.close()
    dist.destroy_process_group()
"""


def test_the_next_round_goes_on_from_a_copy_in_memory(tmp_path: Path) -> None:
    with launched(tmp_path, TRAINING, *TWO, "--max-restarts", "1", args=SLOW) as launcher:
        assert launcher.finish() == 0, launcher.text
        launcher.wait_for(r"the copy of step 2, which was in memory only, is a checkpoint now")
        for rank in range(2):
            launcher.wait_for(f"rank {rank} begins after step 2: 600.0")
    (found,) = (tmp_path / "checkpoints").glob("step-*")
    assert found.name == "step-00000002"


def test_the_last_copy_of_a_job_that_ends_is_written(tmp_path: Path) -> None:
    with launched(tmp_path, TRAINING, *TWO, "--max-restarts", "0", args=SLOW) as launcher:
        assert launcher.finish() == 1, launcher.text
        launcher.wait_for(r"writing the copy of step 2 \(.* GB\), which is in memory only, to ")
        (event,) = launcher.events("last_copy")
        assert (event["step"], event["outcome"]) == (2, "written")
    with launched(tmp_path, TRAINING, "--nproc-per-node", "1") as later:
        later.wait_for("rank 0 begins after step 2: 600.0")


def test_a_committed_checkpoint_is_not_written_again(tmp_path: Path) -> None:
    with launched(tmp_path, TRAINING, *TWO, "--max-restarts", "1") as launcher:
        assert launcher.finish() == 0, launcher.text
        launcher.wait_for("rank 1 begins after step 2: 600.0")
        assert "in memory only" not in launcher.text
    names = {path.name for path in (tmp_path / "checkpoints").glob("step-*")}
    assert names == {"step-00000001", "step-00000002"}


# Rank 0 exits while the others wait for it. It serves the agreements of the Checkpointer, and must
# not wait so long for the others to take leave that it looks as if it were hung.
EXITING = """
    import os, sys
    import torch, torch.distributed as dist
    import undaunted
    from undaunted.checkpointing import Checkpointer

    dist.init_process_group("gloo")
    with Checkpointer("checkpoints", timeout=60) as checkpoints:
        step = checkpoints.load({"x": torch.ones(1)}) or 0
        undaunted.step(step)
        if step == 0:
            checkpoints.save(1, {"x": torch.ones(1)})
            if dist.get_rank() == 0:
                sys.exit(3)
            dist.barrier()
    dist.destroy_process_group()
"""


def test_a_rank_that_exits_with_a_failure_is_gone_soon(tmp_path: Path) -> None:
    limit = ("--ft-rank-heartbeat-timeout", "10")
    with launched(tmp_path, EXITING, *TWO, "--max-restarts", "1", *limit) as launcher:
        assert launcher.finish() == 0
        (verdict,) = launcher.events("verdict")
        assert (verdict["kind"], verdict["rank"], verdict["exit_code"]) == ("crash", 0, 3)


# Rank 1's disk fails, and rank 0 is the only one that says so: rank 1 is elsewhere.
FAILING = """
    import threading
    import torch, torch.distributed as dist
    import undaunted
    from undaunted.checkpointing import Checkpointer

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    state = {f"rank {rank}": torch.ones(50_000)}
    checkpoints = Checkpointer("checkpoints", timeout=60)
    checkpoints.warm_up(state)
    undaunted.step(1)
    checkpoints.save(1, state)
    if rank == 1:
        threading.Event().wait(100)
    checkpoints.wait()
"""


def test_the_rank_whose_disk_fails_is_blamed_though_another_says_so(tmp_path: Path) -> None:
    fault = ("--inject-fault", "torn-write:rank=1,iteration=1")
    with launched(tmp_path, FAILING, *TWO, "--max-restarts", "0", *fault) as launcher:
        assert launcher.finish() == 1
        (verdict,) = launcher.events("verdict")
        assert (verdict["rank"], verdict.get("waiting")) == (1, [0]), verdict["line"]
        assert "save 1 (step 1): rank 1: " in verdict["exception"]
        assert "[EFBIG]" in verdict["line"]
        launcher.wait_for(
            "rank 1 .* failed: .*SaveError.*; rank 0 failed because a peer had failed"
        )
