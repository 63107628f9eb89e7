"""Training with data as most scripts have them: after a restart they are others.

undaunted chaos --nproc-per-node 2 data.py {dir}

Samples are shuffled by DistributedSampler and changed by chance in workers. The number of the
epoch and the random state are restored, the position in the epoch is not.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import undaunted
from undaunted.checkpointing import Checkpointer, RandomState

STEPS, SAVE_EVERY, BATCH, SAMPLES = 60, 10, 4, 400


class Samples(Dataset):  # type: ignore[misc]
    """Numbers with noise."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.full((16,), index / SAMPLES) + torch.randn(16)


def main(directory: str) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layers = nn.Linear(16, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 1)
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model.module, "optimizer": optimizer, "random": RandomState()}
    sampler: Any = DistributedSampler(Samples(), seed=1)
    loader = DataLoader(Samples(), BATCH, sampler=sampler, num_workers=1)
    with Checkpointer(directory) as checkpoints:
        done = checkpoints.load(state) or 0
        while done < STEPS:
            sampler.set_epoch(done // len(loader))
            for batch in loader:
                undaunted.step(done)
                loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                done += 1
                if done % SAVE_EVERY == 0:
                    checkpoints.save(done, state)
                if done == STEPS:
                    break
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
