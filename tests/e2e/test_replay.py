"""Steps that do not give the same twice are computed again, and on another slot, in the job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.usefixtures("no_compiler")]

# On the slot BAD another bit of a gradient flips in each pass from iteration 6 on, or in one pass.
SCRIPT = """
    import os, sys
    import torch
    import torch.distributed as dist
    from pathlib import Path
    from torch.nn.parallel import DistributedDataParallel
    from undaunted.digests.state import digest_of
    from undaunted.training import Replay, Rerun, Session

    rank, slot, kind = int(os.environ["RANK"]), os.environ["LOCAL_RANK"], os.environ["KIND"]
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout())
    model, start, passes = DistributedDataParallel(net), 0, 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if Path("state.pt").exists():
        state, start = torch.load("state.pt")
        net.load_state_dict(state)

    def save(iteration):
        if rank == 0:
            torch.save([net.state_dict(), iteration + 1], "state.pt")
        dist.barrier()

    def spoil(gradient):
        global passes
        passes += iteration >= 6
        bad = {"always": passes > 0, "once": passes == 2, "never": False}[kind]
        if bad and slot == "1":
            gradient = gradient.clone()
            gradient.view(torch.int32)[0, passes % 8] ^= 1 << 20
        return gradient

    def forward_backward():
        generator = torch.Generator().manual_seed(2 * iteration + rank)
        loss = model(torch.randn(8, 8, generator=generator)).square().mean()
        loss.backward()
        return loss

    net[0].weight.register_hook(spoil)
    replay = Replay(model, every=3)
    go_on = os.environ.get("GO_ON", "").split()
    with Session(save=save, rerun=Rerun(folder=".", go_on_after=go_on)) as session:
        for iteration in range(start, 10):
            with session.step(iteration):
                for _ in session.attempts():
                    optimizer.zero_grad()
                    session.check(replay(iteration, forward_backward), "loss")
                optimizer.step()
            if session.should_stop(iteration):
                break
        else:
            print(f"rank {rank} has {digest_of([net.state_dict(), torch.get_rng_state()])!r}.")
    dist.destroy_process_group()
    sys.exit(session.exit_code)
"""
WORDS = ("--nproc-per-node", "2")


def test_a_slot_that_does_not_give_the_same_twice(tmp_path: Path) -> None:
    with launched(tmp_path, SCRIPT, *WORDS, KIND="always") as launcher:
        assert launcher.finish() == 17, launcher.text
        starts = launcher.events("round_started")
        told = [one for one in launcher.events("rank_event") if one["name"] == "odd_result"]
    assert [start["ranks"] for start in starts] == [[0, 1], [1, 0]]
    (event,) = told
    assert event["rank"] == 1
    assert "two passes of the step differ in iteration 6, computed on cpu:1" in event["text"]
    assert "a persistent error of that place" in event["text"]


def test_after_a_transient_error_ranks_end_as_they_do_without_one(tmp_path: Path) -> None:
    ends = []
    for kind in ("never", "once"):
        folder = tmp_path / kind
        folder.mkdir()
        env = {"KIND": kind, "GO_ON": "transient_error"}
        with launched(folder, SCRIPT, *WORDS, **env) as launcher:
            assert launcher.finish() == 0, launcher.text
            ends.append(sorted(re.findall(r"rank \d has '\w+'", launcher.text)))
        assert launcher.text.count("Possible transient error") == (kind == "once")
    assert len(ends[0]) == 2
    assert ends[0] == ends[1]
