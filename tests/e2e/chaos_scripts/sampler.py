"""Plain DistributedDataParallel with a DistributedSampler: nothing in a step is random.

undaunted chaos --nproc-per-node 2 sampler.py {dir} [first-buckets]

The random state is not saved, and making the iterator again moves it once more; no data, gradients
or parameters follow from that. With first-buckets, DistributedDataParallel adds up gradients in the
first step after a start in the same order as in all others.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, SAVE_EVERY = 4, 5


def main(path: Path, *options: str) -> None:
    dist.init_process_group("gloo")
    train(path, *options)  # DistributedDataParallel goes before its group: docs/timeouts.md
    dist.barrier()
    dist.destroy_process_group()


def train(path: Path, *options: str) -> None:
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(384, 64), torch.randn(384, 8))
    sampler: DistributedSampler[object] = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=12, sampler=sampler)
    layers = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)
    keep_buckets = "first-buckets" in options
    model = DistributedDataParallel(nn.Sequential(*layers), find_unused_parameters=keep_buckets)
    optimizer = torch.optim.AdamW(model.parameters())
    done = 0
    if path.exists():
        saved = torch.load(path)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["done"]
    for epoch in range(done // len(loader), EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, wanted in islice(loader, done % len(loader), None):
            loss = (model(inputs) - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done % SAVE_EVERY == 0 and dist.get_rank() == 0:
                new = path.with_suffix(".new")
                saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**saved, "done": done}, new)
                new.rename(path)


main(Path(sys.argv[1], "checkpoint.pt"), *sys.argv[2:])
