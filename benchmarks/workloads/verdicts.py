"""A job for `benchmarks.verdicts`: it computes wrong numbers where, and when, `case.json` says."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from undaunted.training import Rerun, Session

CASE = json.loads(Path("case.json").read_bytes())
RANK = int(os.environ["RANK"])
PLACE = [os.environ["UNDAUNTED_NODE"], int(os.environ["LOCAL_RANK"])]
STATE = Path(f"state-{RANK}.pt")


def multiply(a: torch.Tensor, b: torch.Tensor, step: int) -> torch.Tensor:
    """Multiply matrices; one number of the result may be wrong."""
    result = a @ b
    if is_wrong(step):
        bits = result.view(torch.int32).view(-1)
        element = CASE["element"]
        bits[element] = (bits[element] & CASE["keep"] | CASE["set"]) ^ CASE["flip"]
    return result


def is_wrong(step: int) -> bool:
    if CASE["kind"] == "correct_result":  # whatever the place
        return step == CASE["step"] and RANK in CASE["ranks"]
    if CASE["place"] != PLACE or step < CASE["step"]:
        return False
    once = Path("once")
    if CASE["kind"] == "transient_error" and (step > CASE["step"] or once.exists()):
        return False
    once.touch()
    return True


def save(step: int) -> None:
    part = STATE.with_suffix(".part")
    torch.save({"weight": weight, "next": step + 1}, part)
    part.rename(STATE)


def used(step: int) -> None:
    """Note what the optimizer has made of the step."""
    digest = hashlib.sha256(weight.numpy().tobytes()).hexdigest()
    with Path(f"used-{RANK}").open("a") as file:
        file.write(f"{step} {digest}\n")


dist.init_process_group("gloo")
torch.manual_seed(RANK)  # not saved: a step that is run again gets its numbers from the session
weight, start = torch.eye(8), 0
if STATE.exists():
    weight, start = torch.load(STATE).values()
with Session(save=save, rerun=Rerun(folder="questions", go_on_after=CASE["go_on"])) as session:
    for step in range(start, CASE["steps"]):
        with session.step(step):
            batch = torch.rand(8, 8, generator=torch.Generator().manual_seed(100 * step + RANK))
            for _ in session.attempts():
                gradient = multiply(weight, batch + torch.rand(8, 8), step)
                session.check(gradient.norm(), "norm")
            dist.all_reduce(gradient)
            weight = 0.5 * weight + 0.01 * gradient
            used(step)
        if session.should_stop(step):
            break
dist.destroy_process_group()
sys.exit(session.exit_code)
