"""Training whose data and random numbers are the same, whatever happens to the job.

Run it with another number of ranks each time, and end it when you like:

    undaunted run --nproc-per-node 2 --max-restarts 3 examples/data/train.py checkpoints
    undaunted run --nproc-per-node 4 --max-restarts 3 examples/data/train.py checkpoints

A step learns from 64 images: of two data sets, three of four from the larger one, turned around by
chance. Each rank computes its share of the 16 micro-batches. With fewer ranks the shares are
larger, and the step is the same. To see that nothing is lost:

    undaunted chaos --nproc-per-node 2 --faults kill,sigterm examples/data/train.py {dir}
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import ConcatDataset, Dataset

import undaunted
from undaunted.checkpointing import Checkpointer
from undaunted.data import Loader, Mixture

STEPS, SAVE_EVERY = 60, 10


class Images(Dataset):
    """Images of which some are turned around: with undaunted by the same chance in each run."""

    def __init__(self, length, brightness):
        self.length, self.brightness = length, brightness

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(1, 16, 16, generator=generator) * self.brightness
        label = int(image.mean(dim=(0, 2)).argmax())
        return (image.flip(2) if torch.rand(()) < 0.5 else image), label


def main(directory):
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(2048, 16)
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    small, large = Images(1000, 1.0), Images(20_000, 0.5)
    loader = Loader(
        ConcatDataset([small, large]),
        order=Mixture([len(small), len(large)], weights=[1, 3], seed=1),
        global_batch=64,
        micro_batch=4,
        seed=1,
        num_workers=2,
    )
    state = {"model": network, "optimizer": optimizer, "loader": loader}
    with Checkpointer(directory) as checkpoints:
        for step in range(checkpoints.load(state) or 0, STEPS):
            undaunted.step(step)
            learned = torch.zeros(())
            for images, labels in loader.step():
                with loader.accumulate(model):
                    loss = nn.functional.cross_entropy(model(images), labels)
                    (loss * loader.scale).backward()
                learned += loss.detach() * loader.scale
            optimizer.step()
            optimizer.zero_grad()
            if (step + 1) % SAVE_EVERY == 0:
                checkpoints.save(step + 1, state)
                dist.all_reduce(learned)
                if dist.get_rank() == 0:
                    print(f"step {step + 1}: loss {learned.item() / dist.get_world_size():.4f}")
    loader.close()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
