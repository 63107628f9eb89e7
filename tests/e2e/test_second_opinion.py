"""Ranks that compute wrong numbers are found out in the job: once, on one slot, or nowhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched, nodes_of_a_job

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.usefixtures("no_compiler")]

# DDP by hand: a matrix product of which one bit is flipped on the slot BAD, if any.
SCRIPT = """
    import os, sys
    import torch
    import torch.distributed as dist
    from pathlib import Path
    from undaunted.training import Rerun, Session

    rank, slot = int(os.environ["RANK"]), os.environ["LOCAL_RANK"]
    bad = os.environ["BAD"] in (slot, os.environ["UNDAUNTED_NODE"])
    kind, at = os.environ["KIND"], 6
    if gate := os.environ.get("GATE"):
        open(gate).close()  # once it is opened there as well
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(7 + rank)
    weight, start = torch.eye(4), 0
    if Path(f"state-{rank}.pt").exists():
        weight, start = torch.load(f"state-{rank}.pt", weights_only=True).values()

    def multiply(a, b, iteration):
        result = a @ b
        hit = kind == "always" and iteration >= at
        if kind == "once" and iteration == at and bad and not Path("done").exists():
            Path("done").touch()
            hit = True
        if hit and bad:
            result.view(torch.int32)[0, 0] |= 0x7F800000  # bits of the exponent
        return result

    def save(iteration):
        torch.save({"weight": weight, "next": iteration + 1}, f"state-{rank}.pt")

    rerun = Rerun(folder=".", go_on_after=os.environ.get("GO_ON", "").split())
    with Session(save=save, rerun=rerun) as session:
        for iteration in range(start, 12):
            with session.step(iteration):
                generator.manual_seed(iteration)
                batch = torch.rand(4, 4, generator=generator)
                if kind == "data" and iteration == at and rank == 1:
                    batch[0, 0] = float("nan")
                for _ in session.attempts():
                    noise = torch.rand(4, 4)  # drawn again with the same numbers
                    gradient = multiply(weight, batch, iteration) + noise
                    session.check(gradient.norm(), "loss")
                dist.all_reduce(gradient)
                weight = weight * 0.9 + gradient * 0.01
            if session.should_stop(iteration):
                break
        else:
            print(f"rank {rank} is done on slot {slot}, finite: {bool(weight.isfinite().all())}")
    dist.destroy_process_group()
    sys.exit(session.exit_code)
"""


def told(launcher, name):
    return [event for event in launcher.events("rank_event") if event["name"] == name]


def test_a_transient_error(tmp_path: Path) -> None:
    with launched(tmp_path, SCRIPT, "--nproc-per-node", "2", BAD="1", KIND="once") as launcher:
        assert launcher.finish() == 17, launcher.text
        (event,) = told(launcher, "odd_result")
        (ended,) = launcher.events("job_ended")
    assert event["rank"] == 1
    assert "a transient error" in event["text"]
    assert "rank 1" in ended["reason"]
    assert "in iteration" in ended["reason"]  # what was odd, and where


def test_a_persistent_error_of_a_slot(tmp_path: Path) -> None:
    with launched(tmp_path, SCRIPT, "--nproc-per-node", "2", BAD="1", KIND="always") as launcher:
        assert launcher.finish() == 17, launcher.text
        starts = launcher.events("round_started")
        (event,) = told(launcher, "odd_result")
    assert [start["ranks"] for start in starts] == [[0, 1], [1, 0]]
    assert event["rank"] == 1
    assert "computed on cpu:1" in event["text"]
    assert "a persistent error of that place" in event["text"]


def test_nobody_goes_on_with_what_another_rank_gets_on_the_broken_slot(tmp_path: Path) -> None:
    words = ("--nproc-per-node", "2")
    go_on = "persistent_error"
    with launched(tmp_path, SCRIPT, *words, BAD="1", KIND="always", GO_ON=go_on) as launcher:
        assert launcher.finish() == 17, launcher.text
        (event,) = told(launcher, "odd_result")
    assert "a persistent error of that place" in event["text"]
    assert "on rank 0 at iteration #6 when it was run again" in launcher.text


def test_a_correct_result(tmp_path: Path) -> None:
    with launched(tmp_path, SCRIPT, "--nproc-per-node", "2", BAD="x", KIND="data") as launcher:
        assert launcher.finish() == 17, launcher.text
        starts = launcher.events("round_started")
        (event,) = told(launcher, "odd_result")
    assert len(starts) == 2
    assert "a correct result, however odd" in event["text"]


@pytest.mark.slow
def test_a_job_with_a_spare_goes_on_without_the_node_that_computes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--nnodes", "2:3", "--worker-start", "warm")
    monkeypatch.setenv("KIND", "always")
    monkeypatch.setenv("BAD", "b")
    monkeypatch.setenv("GO_ON", "persistent_error")
    os.mkfifo(gate := tmp_path / "gate")
    monkeypatch.setenv("GATE", str(gate))
    with nodes_of_a_job(tmp_path, SCRIPT, *options) as start:
        nodes = []
        for name in "abc":
            nodes.append(start(name, f"is_host={int(name == 'a')}"))
            nodes[-1].wait_for("rank" if name != "c" else "spare")
        with gate.open("r+b", buffering=0):
            codes = [launcher.finish() for launcher in nodes]
    text = "\n".join(launcher.text for launcher in nodes)
    assert codes == [0, 1, 0], text
    assert "Rank 1, node b, device cpu:0, iteration #6: Possible persistent error!" in text
    assert text.count("finite: True") == 2
