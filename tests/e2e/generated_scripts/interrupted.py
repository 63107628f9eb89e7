"""Adds up the numbers of its steps, saves, and stops in order: END STEPS SUM."""

import sys
import time

import torch
import torch.distributed as dist

from undaunted.checkpointing import Checkpointer
from undaunted.training import Session

dist.init_process_group("gloo")
state = {"sum": torch.zeros((), dtype=torch.int64), "weights": torch.ones(500_000)}
with (
    Checkpointer("checkpoints", keep=2) as checkpoints,
    Session(save=lambda step: checkpoints.save(step + 1, state)) as session,
):
    for step in range(checkpoints.load(state) or 0, 60):
        with session.step(step):
            time.sleep(0.03)
            one = torch.full((), step / dist.get_world_size(), dtype=torch.float64)
            dist.all_reduce(one)
            state["sum"] += int(one.item())
        if step % 7 == 6 or step == 59:
            session.save(step)
        if session.should_stop(step):
            break
if dist.get_rank() == 0 and not session.stop:
    print(f"END 60 {int(state['sum'])}", flush=True)
dist.destroy_process_group()
sys.exit(session.exit_code)
