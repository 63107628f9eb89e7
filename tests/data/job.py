"""Training that notes what it learns from: job.py HISTORY START; see histories.py."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import ConcatDataset, Dataset

import undaunted
from undaunted.checkpointing import Checkpointer
from undaunted.data import Loader, Mixture

HISTORY = json.loads(sys.argv[1])
START = int(sys.argv[2])
ROUND = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
ALONE = [1, 0, "none", 0, 0, HISTORY["steps"]]


class Samples(Dataset):  # type: ignore[misc]
    """Each sample has its number and two random numbers."""

    def __init__(self, first: int, length: int) -> None:
        self.first, self.length = first, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        noise = torch.tensor([torch.rand(()).item(), random.random()], dtype=torch.float64)
        return self.first + index, noise


def disturb(fault: str) -> None:
    """Have it happen, once in this start."""
    Path("fired").touch()
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "exception":
        raise RuntimeError("as planned")
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "worker":
        os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    elif fault == "agent":
        os.kill(os.getppid(), signal.SIGKILL)
    elif fault == "terminate":
        launcher = int(Path(f"/proc/{os.getppid()}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(launcher, signal.SIGTERM)


def data(history: dict[str, Any], workers: int) -> Loader:
    lengths = history["lengths"]
    parts = [Samples(sum(lengths[:at]), length) for at, length in enumerate(lengths)]
    mixture = None
    if len(lengths) > 1:
        weights = [1.0 + at for at in range(len(lengths))]
        mixture = Mixture(lengths, weights, seed=3, length=sum(lengths))
    return Loader(
        ConcatDataset(parts),
        order=mixture,
        global_batch=history["micro"] * history["shares"],
        micro_batch=history["micro"],
        remainder=history["remainder"],
        exact=history["exact"],
        seed=3,
        num_workers=workers,
        persistent_workers=history["persistent"] and workers > 0,
    )


def main() -> None:
    torch.set_num_threads(1)
    _, workers, fault, where, when, until = HISTORY["starts"][START] if START >= 0 else ALONE
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(2, 16), nn.Dropout(0.2), nn.Linear(16, 1))
    if WORLD > 1:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    plain = model.module if WORLD > 1 else model
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    loader = data(HISTORY, workers)
    state = {"model": plain, "optimizer": optimizer, "loader": loader}
    with Checkpointer("checkpoints") as checkpoints:
        for number in range((checkpoints.load(state) or 0) + 1, until + 1):
            undaunted.step(number)
            for batch in loader.step():
                with loader.accumulate(model):
                    note(number, loader, batch, torch.rand(()).item())
                    output = model(batch[1][: loader.real].float())
                    (output.square().mean() * loader.scale).backward()
                if (RANK, number) == (where, when) and ROUND == 0 and not Path("fired").exists():
                    disturb(fault)
            optimizer.step()
            optimizer.zero_grad()
            if number % HISTORY["every"] == 0:
                checkpoints.save(number, state)
    loader.close()
    if RANK == 0 and until == HISTORY["steps"]:
        content = torch.cat([one.detach().reshape(-1) for one in plain.parameters()])
        digest = hashlib.sha256(content.numpy().tobytes()).hexdigest()
        Path("result.json").write_text(json.dumps({"digest": digest, "sum": content.sum().item()}))
    if WORLD > 1:
        del model
        dist.destroy_process_group()


def note(number: int, loader: Loader, batch: Any, draw: float) -> None:
    indices, noise = batch
    content = {
        "start": START,
        "round": ROUND,
        "step": number,
        "counted": loader.real if loader.scale else 0,
        "samples": [
            [loader.epoch, index, *two]
            for index, two in zip(indices.tolist(), noise.tolist(), strict=True)
        ],
        "draw": draw,
    }
    with Path(f"noted-{START}-{RANK}.jsonl").open("a") as file:
        file.write(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
