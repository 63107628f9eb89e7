"""A function that all ranks run again, in the same processes, when one of them fails.

With FAULT set, rank 1 fails once, at step 10. Run it with one of

    FAULT=1 undaunted run --nproc-per-node 4 examples/inprocess/basic.py
    FAULT=1 torchrun --nproc-per-node 4 examples/inprocess/basic.py

or start processes with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment. Every
fifth step is saved in total.pt, in the current directory: what is run again goes on from there.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist

import undaunted
from undaunted import inprocess

STEPS = 20
FAULT_AT = 10
SAVE_EVERY = 5
SAVED = Path("total.pt")

say_prefix = f"process {os.environ['RANK']}"  # RANK may change; the process stays


@inprocess.Wrapper(initialize=inprocess.initialize.RetryController(max_iterations=3))
def train(call: inprocess.CallWrapper) -> float:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # call.store is a fresh one in every iteration.
    dist.init_process_group("gloo", store=call.store, rank=rank, world_size=size)
    torch.manual_seed(rank)  # nothing is random here: as undaunted chaos compares that, too
    first, total = torch.load(SAVED) if SAVED.exists() else (0, torch.zeros(1))
    for step in range(first, STEPS):
        undaunted.step(step, digest=total)
        if step == FAULT_AT and rank == 1 and call.iteration == 0 and "FAULT" in os.environ:
            raise RuntimeError("a fault, to see what happens")
        ones = torch.ones(1)
        dist.all_reduce(ones)  # the others wait here for rank 1, and are taken out
        total += ones
        if step % SAVE_EVERY == SAVE_EVERY - 1 and rank == 0:
            with call.atomic():  # a restart waits until the file is complete
                torch.save((step + 1, total), SAVED.with_suffix(".new"))
                SAVED.with_suffix(".new").replace(SAVED)
    dist.destroy_process_group()
    return total.item()


if __name__ == "__main__":
    result = train()
    print(f"{say_prefix} (pid {os.getpid()}): {result:g}", flush=True)
