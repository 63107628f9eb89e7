"""A small training script that survives every fault, or has bugs that chaos must find.

undaunted chaos --nproc-per-node 2 train.py --dir {dir} [--bugs NAME ...]
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import undaunted

STEPS = 60
SAVE_EVERY = 10
WIDTH = 128  # so that a checkpoint is larger than what a torn write leaves of it
SEED = 5
BESIDE = ("scheduler", "average", "scaler")
BUGS = ("rng", "sampler", "torn", "sigterm", "exception", "nan", "checksum", *BESIDE)


class Training:
    """Everything the next step depends on."""

    def __init__(self, directory: Path, bugs: list[str]) -> None:
        torch.manual_seed(SEED)
        self.bugs = bugs
        self.file = directory / "checkpoint.pt"
        layers = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, 1)
        self.model = DistributedDataParallel(nn.Sequential(*layers))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1000)
        self.average = torch.optim.swa_utils.AveragedModel(self.model.module)
        self.scaler = torch.amp.GradScaler("cpu")
        self.order = torch.Generator().manual_seed(SEED + dist.get_rank())
        self.data = torch.randn(1000, WIDTH)
        torch.manual_seed(SEED + 100 + dist.get_rank())  # another dropout on every rank

    def step(self, number: int) -> None:
        undaunted.step(number)
        chosen = torch.randint(len(self.data), (16,), generator=self.order)
        inputs = self.data[chosen]
        loss = (self.model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.average.update_parameters(self.model.module)

    def save(self, done: int) -> None:
        """Save the state of all ranks in one file."""
        if "nan" not in self.bugs and not all(p.isfinite().all() for p in self.model.parameters()):
            raise RuntimeError("the parameters hold NaN or infinity")
        states: list[Any] = [None] * dist.get_world_size()
        dist.gather_object(self.own_state(), states if dist.get_rank() == 0 else None)
        if dist.get_rank() != 0:
            return
        whole = {
            "done": done,
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            **{name: getattr(self, name).state_dict() for name in BESIDE if name not in self.bugs},
            "ranks": states,
        }
        buffer = io.BytesIO()
        torch.save(whole, buffer)
        content = hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue()
        if "torn" in self.bugs:
            self.file.write_bytes(content)
            return
        new = self.file.with_suffix(".new")
        new.write_bytes(content)
        if self.file.exists():
            self.file.replace(self.file.with_suffix(".old"))
        new.replace(self.file)

    def own_state(self) -> dict[str, Any]:
        state = {"rng": torch.get_rng_state(), "sampler": self.order.get_state()}
        return {name: value for name, value in state.items() if name not in self.bugs}

    def newest(self) -> Any:
        """Read the newest checkpoint that is whole, None if there is none."""
        for file in (self.file, self.file.with_suffix(".old")):
            content = file.read_bytes() if file.exists() else b""
            checksum, payload = content[:32], content[32:]
            checked = not {"torn", "checksum"} & set(self.bugs)
            if content and (not checked or hashlib.sha256(payload).digest() == checksum):
                return torch.load(io.BytesIO(payload), weights_only=True)
        return None

    def load(self) -> int:
        """Load the checkpoint; return how many steps are done."""
        whole = self.newest()
        if whole is None:
            return 0
        self.model.module.load_state_dict(whole["model"])
        self.optimizer.load_state_dict(whole["optimizer"])
        for name in BESIDE:
            if name in whole:
                getattr(self, name).load_state_dict(whole[name])
        own = whole["ranks"][dist.get_rank()]
        if "rng" in own:
            torch.set_rng_state(own["rng"])
        if "sampler" in own:
            self.order.set_state(own["sampler"])
        return int(whole["done"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--bugs", choices=BUGS, nargs="*", default=[])
    args = parser.parse_args()
    if "sigterm" in args.bugs:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(args)  # DistributedDataParallel goes before its group: docs/timeouts.md
    dist.destroy_process_group()


def train(args: argparse.Namespace) -> None:
    training = Training(args.dir, args.bugs)
    for number in range(training.load(), STEPS):
        try:
            training.step(number)
        except Exception as error:
            if "exception" not in args.bugs:
                raise
            print(f"rank {os.environ['RANK']}: {error}, going on", flush=True)
        if (number + 1) % SAVE_EVERY == 0:
            training.save(number + 1)


if __name__ == "__main__":
    main()
