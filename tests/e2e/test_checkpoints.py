"""Checkpoints of ranks that are killed: what was copied is not lost with the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.usefixtures("no_compiler")]


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
        print("copied", flush=True)
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


@pytest.mark.parametrize("ending", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_last_copy_is_written_after_the_launcher_is_killed(
    tmp_path: Path, ending: bool
) -> None:
    script = TRAINING if ending else TRAINING.replace("if rank == 1:", "if False:")
    with launched(tmp_path, script, *TWO, "--max-restarts", "0", args=SLOW) as launcher:
        if ending:  # the job has failed, and the copy is just written
            launcher.wait_for("writing the copy of step 2")
        else:
            for _ in range(2):
                launcher.wait_for_next("copied")
        launcher.process.kill()
        launcher.finish()
        (event,) = launcher.events("last_copy")
        assert (event["step"], event["outcome"]) == (2, "written")
        assert launcher.text.count("the launcher was killed") == (0 if ending else 1)
    assert (tmp_path / "checkpoints/step-00000002").is_dir()


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


@pytest.mark.slow
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


# Thousands of tensors, a loader's long list, and an object that grows a little. The objects and the
# plan of all ranks together need much more room than those of small states.
LARGE = """
    import os, sys
    import torch, torch.distributed as dist
    from torch import nn
    from undaunted.checkpointing import Checkpointer

    def memory():
        links = {os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")}
        named = {f for f in links if os.path.islink(f) and "undaunted-checkpoint" in os.readlink(f)}
        return {os.stat(f).st_ino for f in named}

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(500)])
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    loader = {"order": list(range(40_000)), "seen": {"a": 0}, "text": ""}
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    with Checkpointer("checkpoints", timeout=60) as checkpoints:
        before = checkpoints.load(state) or 0
        if sys.argv[1:] == ["warm"]:
            checkpoints.warm_up(state)
        seen = memory()
        for step in range(before + 1, 6):
            loader["seen"]["a"] = step * 10**step
            loader["text"] += "grown "
            checkpoints.save(step, state)
            checkpoints.wait()
            seen |= memory()
    print(f"from {before}, arenas: {len(seen)}", flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("warm", [False, True])
def test_a_state_of_thousands_of_tensors_is_saved_in_the_same_memory(
    tmp_path: Path, warm: bool
) -> None:
    args = ("warm",) if warm else ()
    with launched(tmp_path, LARGE, *TWO, "--max-restarts", "0", args=args) as launcher:
        assert launcher.finish() == 0, launcher.text
        assert launcher.text.count("from 0, arenas: 1") == 2, launcher.text
    with launched(tmp_path, LARGE, "--nproc-per-node", "1") as later:
        later.wait_for("from 5, ")


# A file is where the checkpoint of the last step should be.
LOST = """
    import os, signal, sys, threading
    import torch, torch.distributed as dist
    import undaunted
    from undaunted.checkpointing import Checkpointer

    dist.init_process_group("gloo")
    code, inside = int(sys.argv[1]), sys.argv[2] == "inside"
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    checkpoints = Checkpointer("checkpoints", timeout=60)
    if dist.get_rank() == 0:
        open("checkpoints/step-00000001", "w").close()
    print("ready", flush=True)
    if code == 75:
        assert asked.wait(60)
    if inside:
        with checkpoints:
            checkpoints.save(1, {"x": torch.ones(3)})
            sys.exit(code)
    checkpoints.save(1, {"x": torch.ones(3)})
    sys.exit(code)
"""


@pytest.mark.parametrize(
    ("code", "where"), [pytest.param("0", "atexit", marks=pytest.mark.slow), ("75", "inside")]
)
def test_a_job_whose_last_checkpoint_is_lost_says_so(tmp_path: Path, code: str, where: str) -> None:
    options = (*TWO, "--max-restarts", "0")
    with launched(tmp_path, LOST, *options, args=(code, where)) as launcher:
        if code == "75":  # as at a preemption
            for _ in range(2):
                launcher.wait_for_next("ready")
            launcher.process.terminate()
        assert launcher.finish() == (75 if code == "75" else 1), launcher.text
        verdict = "" if code == "75" else r"\[undaunted\] .*failed.*"
        launcher.wait_for(f"{verdict}the last checkpoint was not saved")


# In each round the state has something else besides that cannot be saved, at the same step.
UNSAVABLE = """
    import os, sys
    import torch.distributed as dist
    import undaunted
    from undaunted.checkpointing import Checkpointer

    class Mine:
        pass

    dist.init_process_group("gloo")
    with Checkpointer("checkpoints", timeout=60) as checkpoints:
        value = Mine() if sys.argv[1] == "type" else dist.get_rank()
        state = {"value": value}
        if sys.argv[2] == "steps":
            undaunted.step(4)
            undaunted.step(5)
        checkpoints.save(5, state)
        checkpoints.wait()
"""


@pytest.mark.parametrize(("what", "steps"), [("type", "none"), ("differs", "steps")])
def test_a_state_that_cannot_be_saved_does_not_use_up_the_restarts(
    what: str, steps: str, tmp_path: Path
) -> None:
    args = (what, steps)
    with launched(tmp_path, UNSAVABLE, *TWO, "--max-restarts", "9", args=args) as launcher:
        assert launcher.finish() == 93, launcher.text
        launcher.wait_for("failed: .*StateError: .*value")
        launcher.wait_for("no restart, 2 restarts: the state cannot be saved: 3 times")
