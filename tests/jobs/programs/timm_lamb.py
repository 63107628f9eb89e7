"""A ConvNeXt of timm with its own optimizer (LAMB), schedule and EMA; Checkpointer saves."""

import timm
import torch
import torch.distributed as dist
from result import BF16, print_result
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch.nn.parallel import DistributedDataParallel

import undaunted
from undaunted.checkpointing import Checkpointer, RandomState

STEPS, SAVE_EVERY, BATCH = 20, 5, 8


def batch(step):
    """The same for each start of the job."""
    seed = step * dist.get_world_size() + dist.get_rank()
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(0, 10, (BATCH,), generator=generator)
    return torch.randn(BATCH, 3, 64, 64, generator=generator) + classes.view(-1, 1, 1, 1), classes


def main():
    torch.manual_seed(1)
    net = timm.create_model("convnext_atto", num_classes=10, drop_path_rate=0.1)
    optimizer = create_optimizer_v2(net, "lamb", lr=5e-3, weight_decay=0.02)
    schedule = CosineLRScheduler(optimizer, t_initial=STEPS, warmup_t=4, t_in_epochs=False)
    average = ModelEmaV3(net, decay=0.9)
    model = DistributedDataParallel(net)
    loss_of = LabelSmoothingCrossEntropy(0.1)
    state = {
        "model": net,
        "optimizer": optimizer,
        "schedule": schedule,
        "average": average,
        "random": RandomState(),
    }
    with Checkpointer("checkpoints", keep=2) as checkpoints:
        for step in range(checkpoints.load(state) or 0, STEPS):
            undaunted.step(step)
            pictures, classes = batch(step)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=BF16):
                loss = loss_of(model(pictures).float(), classes)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step_update(step + 1)
            average.update(net, step=step)
            if step % SAVE_EVERY == SAVE_EVERY - 1:
                checkpoints.save(step + 1, state)
    print_result(average, STEPS)


dist.init_process_group("gloo")
main()
dist.destroy_process_group()
