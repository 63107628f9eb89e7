"""Sections: what a rank is doing has a name, and a limit of its own.

    undaunted run --nproc-per-node 2 --max-restarts 3 \\
        --ft-rank-section-timeouts setup:120,step:10,checkpoint:60 \\
        --ft-rank-out-of-section-timeout 10 \\
        examples/minimal/sections.py

Without limits on the command line they are learned.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import undaunted

CHECKPOINT = Path("sections.pt")
STEPS, EVERY = 100, 10

with undaunted.section("setup"):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    first = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1

for step in range(first, STEPS):
    undaunted.step(step)
    with undaunted.section("step"):
        seeded = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        inputs = torch.randn(16, 4, generator=seeded)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0 and step % EVERY == EVERY - 1:
        with undaunted.section("checkpoint"):
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, "sections.new")
            Path("sections.new").replace(CHECKPOINT)
        print(f"step {step}: loss {loss.item():.2g}", flush=True)
dist.destroy_process_group()
