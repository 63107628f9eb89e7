"""Plain DDP over gloo with a tiny model: WORK SLOW ROUNDS STEPS, see `benchmarks.slow_rank`.

Work is sleep, as of a host that waits for its device, CPU time, or matrices to multiply. SLOW has a
rank for each round, which does 15 % more; -1 is none. There is no line for undaunted but
`undaunted.step`.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

import undaunted

SLEEP_S, CPU_S, PRODUCTS = 0.040, 0.004, 40

work, slow, steps = sys.argv[1], [int(rank) for rank in sys.argv[2].split(",")], int(sys.argv[3])
rank, number = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
factor = 1.15 if rank == slow[number] else 1
torch.set_num_threads(1)
dist.init_process_group("gloo")
layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
model = torch.nn.parallel.DistributedDataParallel(layers)
matrix = torch.randn(192, 192)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(number * steps, (number + 1) * steps):
    undaunted.step(step)
    if work == "sleep":
        time.sleep(SLEEP_S * factor)
    elif work == "matrices":
        for _ in range(round(PRODUCTS * factor)):
            matrix @ matrix
    else:
        until = time.thread_time() + CPU_S * factor
        while time.thread_time() < until:
            pass
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
dist.barrier()
os._exit(number + 1 < len(slow))  # 1: another round, in which all begins anew
