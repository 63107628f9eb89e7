"""A GPT with DDP, dropout and loader workers: ``gpt.py DEVICE WIDTH LAYERS``.

It computes in bf16 on a GPU: many a CPU takes 50 times as long for that as for float32.

It saves with Checkpointer and stops in order by a Session; at the end it writes a digest of
all parameters, and for how long its saves have stopped it, to ``result.json``.
"""

import hashlib
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset

from undaunted.checkpointing import Checkpointer, RandomState
from undaunted.training import Session

DEVICE, WIDTH, LAYERS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
STEPS, SAVE_EVERY, BATCH = 40, 10, 8
VOCABULARY, LENGTH = (8192, 256) if DEVICE == "cuda" else (512, 64)


class Texts(Dataset):
    def __len__(self):
        return STEPS * BATCH * dist.get_world_size()

    def __getitem__(self, at):
        generator = torch.Generator().manual_seed(at)
        return torch.randint(0, VOCABULARY, (LENGTH + 1,), generator=generator)


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.positions = torch.nn.Embedding(LENGTH, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, WIDTH // 64, 4 * WIDTH, batch_first=True, norm_first=True
        )
        self.blocks = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1))

    def forward(self, tokens):
        embedded = self.tokens(tokens) + self.positions.weight
        return self.head(self.blocks(embedded, mask=self.mask))


def loss_of(model, batch):
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=DEVICE == "cuda"):
        logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def batches(start):
    """Return those of the steps from `start` on."""
    own = range(dist.get_rank(), len(Texts()), dist.get_world_size())
    rest = Subset(Texts(), own[start * BATCH :])
    generator = torch.Generator()  # or iter() draws a number from that of dropout
    return iter(DataLoader(rest, BATCH, num_workers=2, generator=generator))


def told(model, saves):
    """Return what is compared of two runs, and what is only shown."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    numbers = sum(one.numel() for one in model.parameters())
    return {"numbers": numbers, "digest": digest.hexdigest(), "saves_s": saves}


def main():
    torch.manual_seed(1)
    module = GPT().to(DEVICE)
    model = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    torch.manual_seed(100 + dist.get_rank())  # of dropout
    state = {"model": module, "optimizer": optimizer, "schedule": schedule, "random": RandomState()}
    saves = []
    with (
        Checkpointer("checkpoints", keep=1) as checkpoints,
        Session(save=lambda step: checkpoints.save(step + 1, state)) as session,
    ):
        checkpoints.warm_up(state)
        start = checkpoints.load(state) or 0
        loader = batches(start)
        for step in range(start, STEPS):
            with session.step(step):
                loss_of(model, next(loader).to(DEVICE)).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
            if step % SAVE_EVERY == SAVE_EVERY - 1:
                checkpoints.wait()  # else more steps come between two saves
                if DEVICE == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
                session.save(step)
                saves.append(time.perf_counter() - began)
            if session.should_stop(step):
                break
    if not session.stop and dist.get_rank() == 0:
        Path("result.json").write_text(json.dumps(told(module, saves)))
    return session.exit_code


if DEVICE == "cuda":
    torch.cuda.set_device(0)
    torch.use_deterministic_algorithms(True)  # else two runs differ by the GPU's own order of sums
dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
code = main()
dist.destroy_process_group()
sys.exit(code)
