"""Trains with undaunted's Checkpointer, and looks at what it computes.

undaunted chaos --nproc-per-node 2 checkpoints.py DIR [careless]
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import undaunted
from undaunted.checkpointing import Checkpointer, RandomState

STEPS = 60
SAVE_EVERY = 10


def main() -> None:
    careless = "careless" in sys.argv[2:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model.module, "optimizer": optimizer, "random": RandomState()}
    with Checkpointer(sys.argv[1], certify=None if careless else 1, keep=4) as checkpoints:
        for step in range(checkpoints.load(state) or 0, STEPS):
            undaunted.step(step)
            inputs = torch.randn(16, 32)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            if not careless and not loss.isfinite():
                raise FloatingPointError(f"the loss of step {step} is {loss.item()}")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (step + 1) % SAVE_EVERY == 0:
                checkpoints.save(step + 1, state)
                checkpoints.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
