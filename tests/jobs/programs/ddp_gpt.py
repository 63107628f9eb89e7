"""A GPT of 7 M parameters with plain DDP: bf16, accumulation, EMA, evaluation, loader workers.

It saves with Checkpointer, and stops in order by a Session.
"""

import contextlib
import sys

import torch
import torch.distributed as dist
from result import BF16, print_result
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

from undaunted.checkpointing import Checkpointer, RandomState
from undaunted.training import Session, ignore_stop_signals

STEPS, SAVE_EVERY, EVALUATE_EVERY, ACCUMULATED, BATCH = 24, 6, 8, 2, 4
VOCABULARY, LENGTH, WIDTH, LAYERS, HEADS = 4096, 64, 256, 6, 8


class Texts(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, at):
        generator = torch.Generator().manual_seed(at)
        return torch.randint(0, VOCABULARY, (LENGTH + 1,), generator=generator)


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.positions = torch.nn.Embedding(LENGTH, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True
        )
        self.blocks = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1))

    def forward(self, tokens):
        embedded = self.tokens(tokens) + self.positions.weight
        return self.head(self.blocks(embedded, mask=self.mask))


def loss_of(model, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=BF16):
        logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def batches(data, start):
    """Those of the steps from `start` on."""
    sampler = DistributedSampler(data, shuffle=True, seed=3)
    rest = Subset(data, list(sampler)[start * ACCUMULATED * BATCH :])
    loader = DataLoader(
        rest,
        BATCH,
        num_workers=2,
        worker_init_fn=ignore_stop_signals,
        generator=torch.Generator(),  # or iter() draws a number from that of dropout
    )
    return iter(loader)


def main():
    torch.manual_seed(1)
    model = DistributedDataParallel(GPT())
    average = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    torch.manual_seed(100 + dist.get_rank())  # of dropout
    history = []
    state = {
        "model": model.module,
        "average": average,
        "optimizer": optimizer,
        "schedule": schedule,
        "random": RandomState(),
        "history": history,
    }
    data = Texts()
    held_out = torch.stack([data[10**6 + at] for at in range(8)])
    with Checkpointer("checkpoints", keep=2) as checkpoints:
        with Session(save=lambda step: checkpoints.save(step + 1, state)) as session:
            start = checkpoints.load(state) or 0
            loader = batches(data, start)
            for step in range(start, STEPS):
                with session.step(step):
                    for part in range(ACCUMULATED):
                        last = part == ACCUMULATED - 1
                        with contextlib.nullcontext() if last else model.no_sync():
                            loss = loss_of(model, next(loader)) / ACCUMULATED
                            session.check(loss, "loss")
                            loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
                    average.update_parameters(model.module)
                if step % EVALUATE_EVERY == EVALUATE_EVERY - 1:
                    losses = []
                    average.eval()
                    for part in session.evaluating(held_out.split(2)):
                        with torch.no_grad():
                            losses.append(loss_of(average.module, part))
                    loss = torch.stack(losses).mean()
                    dist.all_reduce(loss)
                    if not session.stop:
                        history.append(float(loss) / dist.get_world_size())
                if step % SAVE_EVERY == SAVE_EVERY - 1:
                    session.save(step)
                if session.should_stop(step):
                    break
        if not session.stop:
            print_result(average, STEPS)
    return session.exit_code


dist.init_process_group("gloo")
code = main()
dist.destroy_process_group()
sys.exit(code)
