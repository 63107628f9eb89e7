"""A vision transformer whose pictures come from a Loader: augmented by chance in its workers.

`loader_vit.py continuous` saves as often as the disk and the cost allow, instead of every 5 steps.

A step has four micro-batches, which any number of ranks up to four can share. With exact=True the
result is that of any of them, bit for bit. It stops in order by a Session.
"""

import sys

import torch
import torch.distributed as dist
from result import print_result
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import ConcatDataset, Dataset
from torchvision.transforms import v2
from transformers import ViTConfig, ViTForImageClassification, get_cosine_schedule_with_warmup

from undaunted.checkpointing import Checkpointer
from undaunted.data import Loader, Mixture
from undaunted.training import Session, ignore_stop_signals

STEPS, SAVE_EVERY = 20, 5


class Pictures(Dataset):
    def __init__(self, length, seed):
        self.length, self.seed = length, seed
        self.augment = v2.Compose(
            [
                v2.RandomHorizontalFlip(),
                v2.RandomResizedCrop(32, scale=(0.6, 1.0), antialias=True),
                v2.ColorJitter(0.2, 0.2),
                v2.RandomErasing(0.3),
            ]
        )

    def __len__(self):
        return self.length

    def __getitem__(self, at):
        generator = torch.Generator().manual_seed(self.seed + at)
        return self.augment(torch.rand(3, 40, 40, generator=generator)), at % 10


def main():
    torch.manual_seed(1)
    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=768,
        image_size=32,
        patch_size=4,
        num_labels=10,
        hidden_dropout_prob=0.1,
    )
    continuous = "continuous" in sys.argv[1:]
    steps = 2 * STEPS if continuous else STEPS
    plain = ViTForImageClassification(config)
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = get_cosine_schedule_with_warmup(optimizer, 4, steps)
    parts = [Pictures(96, 0), Pictures(30, 10**6)]  # an epoch has 8 steps, the last one is short
    loader = Loader(
        ConcatDataset(parts),
        order=Mixture([len(one) for one in parts], weights=[3, 1], seed=1),
        global_batch=16,
        micro_batch=4,
        remainder="short",
        seed=1,
        exact=True,
        num_workers=2,
        worker_init_fn=ignore_stop_signals,
    )
    every = "continuous" if continuous else SAVE_EVERY
    state = {"model": plain, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    with (
        Checkpointer("checkpoints", keep=2, every=every) as checkpoints,
        Session(save=lambda step: checkpoints.save(step + 1, state)) as session,
    ):
        for step in range(checkpoints.load(state) or 0, steps):
            with session.step(step):
                for pictures, classes in loader.step():
                    with loader.accumulate(model):
                        loss = functional.cross_entropy(model(pictures).logits, classes)
                        (loss * loader.scale).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
            if checkpoints.due(step + 1):
                session.save(step)
            if session.should_stop(step):
                break
    loader.close()
    if not session.stop:
        print_result(plain, steps)
    return session.exit_code


dist.init_process_group("gloo")
code = main()
dist.destroy_process_group()
sys.exit(code)
