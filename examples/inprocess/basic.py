"""A function that all ranks run again, in the same processes, when one of them fails.

Run it with one of

    undaunted run --nproc-per-node 4 examples/inprocess/basic.py
    torchrun --nproc-per-node 4 examples/inprocess/basic.py

or start processes with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment.
"""

import os

import torch
import torch.distributed as dist

from undaunted import inprocess

STEPS = 20
FAULT_AT = 10  # rank 1 raises there, the first time

say_prefix = f"process {os.environ['RANK']}"  # RANK may change; the process stays


@inprocess.Wrapper(initialize=inprocess.initialize.RetryController(max_iterations=3))
def train(call: inprocess.CallWrapper) -> float:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # call.store is a fresh one in every iteration.
    dist.init_process_group("gloo", store=call.store, rank=rank, world_size=size)
    total = torch.zeros(1)
    for step in range(STEPS):
        if step == FAULT_AT and rank == 1 and call.iteration == 0:
            raise RuntimeError("a fault, to see what happens")
        ones = torch.ones(1)
        dist.all_reduce(ones)  # the others wait here for rank 1, and are taken out
        total += ones
    dist.destroy_process_group()
    return total.item()


if __name__ == "__main__":
    result = train()
    print(f"{say_prefix} (pid {os.getpid()}): {result:g}", flush=True)
