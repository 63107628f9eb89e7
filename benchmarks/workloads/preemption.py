"""A job for `benchmarks.preemption`: says in which phase it is; its result is known bit for bit."""

from __future__ import annotations

import os
import struct
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from undaunted.training import Session

STEPS, SAVE_EVERY, EVALUATE_EVERY, EPOCH = 160, 40, 30, 50
STEP_S = float(sys.argv[1])
RANK = int(os.environ["RANK"])
PHASES = os.open(f"phases-{RANK}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def phase(name: str, seconds: float = 0.0) -> None:
    os.write(PHASES, f"{time.monotonic()} {os.getpid()} {name}\n".encode())
    time.sleep(seconds)


def save(iteration: int) -> None:
    phase("save", 0.15)
    part = Path(f"part-{RANK}")
    part.write_bytes(struct.pack("=qd", iteration, value.item()))
    part.rename(f"state-{RANK}-{iteration}")


def load() -> int:
    """Load the newest iteration that all ranks have saved; return the next one."""
    saved = [int(path.name.rpartition("-")[2]) for path in Path().glob(f"state-{RANK}-*")]
    newest = torch.tensor(max(saved, default=-1))
    dist.all_reduce(newest, dist.ReduceOp.MIN)
    if newest.item() >= 0:
        content = Path(f"state-{RANK}-{newest.item()}").read_bytes()
        value.fill_(struct.unpack("=qd", content)[1])
    return int(newest.item()) + 1


value = torch.tensor(RANK + 0.1, dtype=torch.float64)
with Session(save=save) as session:
    phase("setup", 0.3)
    dist.init_process_group("gloo")
    phase("load", 0.15)
    for iteration in range(load(), STEPS):
        if iteration % EPOCH == 0:
            phase("loader", 0.15)
        phase("step")
        with session.step(iteration):
            total = value.clone()
            dist.all_reduce(total)
            value += torch.sin(total) * (RANK + 1) + iteration
            time.sleep(STEP_S)
        if iteration % EVALUATE_EVERY == EVALUATE_EVERY - 1:
            with session.section("evaluation"):
                phase("evaluation", 0.15)
        if iteration % SAVE_EVERY == SAVE_EVERY - 1:
            session.save(iteration)
        if session.should_stop(iteration):
            phase(f"stop-{iteration}")
            break
    else:
        phase(f"result-{value.item().hex()}")
phase("end")
dist.destroy_process_group()
sys.exit(session.exit_code)
