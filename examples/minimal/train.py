"""The least a script needs to survive crashes: it saves checkpoints and starts from the last one.

Run it with `undaunted run --nproc-per-node 2 --max-restarts 3 examples/minimal/train.py`.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import undaunted

CHECKPOINT = Path("minimal.pt")

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = 0
if CHECKPOINT.exists():
    saved = torch.load(CHECKPOINT, weights_only=True)
    model.load_state_dict(saved["model"])
    first = saved["step"] + 1

for step in range(first, 100):
    undaunted.step(step)  # "I am alive, and about to do this step"
    # Made of step and rank alone, the data after a restart are those that would have come.
    seeded = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    inputs = torch.randn(16, 4, generator=seeded)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0 and step % 10 == 9:
        torch.save({"model": model.state_dict(), "step": step}, "minimal.new")
        Path("minimal.new").replace(CHECKPOINT)  # a complete checkpoint or the one before
        print(f"step {step}: loss {loss.item():.2g}", flush=True)
dist.destroy_process_group()
