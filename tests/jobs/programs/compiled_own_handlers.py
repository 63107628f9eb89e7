"""A compiled model with DDP that saves by torch.save, and has its own handler of SIGTERM."""

import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from result import print_result
from torch.nn.parallel import DistributedDataParallel

import undaunted

STEPS, SAVE_EVERY, BATCH, WIDTH = 40, 10, 32, 512
newest = Path("checkpoints/newest.pt")
told_to_stop = False


def stop(*_):
    global told_to_stop
    told_to_stop = True


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def batch(step):
    """The same for each start of the job."""
    seed = step * dist.get_world_size() + dist.get_rank()
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(seed))


def main():
    torch.manual_seed(1)
    net = torch.nn.Sequential(*[Block() for _ in range(4)])
    model = DistributedDataParallel(net)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rank, start = dist.get_rank(), 0

    def save(step):
        if rank == 0:
            part = newest.with_suffix(".part")
            part.parent.mkdir(exist_ok=True)
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step + 1}, part)
            part.replace(newest)
        dist.barrier()

    if newest.exists():
        state = torch.load(newest)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    for step in range(start, STEPS):
        undaunted.step(step)
        inputs = batch(step)
        (compiled(inputs) - inputs.roll(1, 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        stopping = torch.tensor(float(told_to_stop))
        dist.all_reduce(stopping)
        if step % SAVE_EVERY == SAVE_EVERY - 1 or stopping:
            save(step)
        if stopping:
            return 75
    print_result(net, STEPS)
    return 0


signal.signal(signal.SIGTERM, stop)
dist.init_process_group("gloo")
code = main()
dist.destroy_process_group()
sys.exit(code)
