"""A UNet of Diffusers with its EMA and noise schedule; faults restart a function, no process."""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from result import BF16, print_result
from torch.nn.parallel import DistributedDataParallel

import undaunted
from undaunted import inprocess

STEPS, SAVE_EVERY, BATCH = 20, 5, 4
newest = Path("checkpoints/newest.pt")
noise_of = DDPMScheduler(num_train_timesteps=100)  # made once: still there after a restart


def batch(step, rank, size):
    """The same for each call of the function: pictures, noise, times."""
    generator = torch.Generator().manual_seed(step * size + rank)
    pictures = torch.randn(BATCH, 3, 16, 16, generator=generator)
    noise = torch.randn(BATCH, 3, 16, 16, generator=generator)
    return pictures, noise, torch.randint(0, 100, (BATCH,), generator=generator)


@inprocess.Wrapper(soft_timeout=timedelta(seconds=15), hard_timeout=timedelta(seconds=30))
def train(call: inprocess.CallWrapper):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=call.store, rank=rank, world_size=size)
    torch.manual_seed(1)
    net = UNet2DModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(64, 128, 192),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = get_cosine_schedule_with_warmup(optimizer, 4, STEPS)
    average = EMAModel(net.parameters(), decay=0.9)
    objects = {"net": net, "optimizer": optimizer, "schedule": schedule, "average": average}
    start = 0
    if newest.exists():
        state = torch.load(newest, weights_only=False)
        start = state.pop("step")
        for name, saved in state.items():
            objects[name].load_state_dict(saved)
    for step in range(start, STEPS):
        undaunted.step(step)
        call.ping()
        pictures, noise, times = batch(step, rank, size)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=BF16):
            guess = model(noise_of.add_noise(pictures, noise, times), times).sample
        torch.nn.functional.mse_loss(guess.float(), noise).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        average.step(net.parameters())
        if step % SAVE_EVERY == SAVE_EVERY - 1:
            with call.atomic():  # a restart waits until it is whole
                if rank == 0:
                    part = newest.with_suffix(".part")
                    part.parent.mkdir(exist_ok=True)
                    states = {name: each.state_dict() for name, each in objects.items()}
                    torch.save({**states, "step": step + 1}, part)
                    part.replace(newest)
            dist.barrier()
    average.copy_to(net.parameters())
    dist.destroy_process_group()
    return net


trained = train()
print_result(trained, STEPS)
