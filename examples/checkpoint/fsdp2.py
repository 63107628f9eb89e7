"""Train a sharded model (FSDP2) with checkpoints that load on any number of ranks.

    undaunted run --nproc-per-node 2 --max-restarts 3 examples/checkpoint/fsdp2.py --dir checkpoints
    undaunted run --nproc-per-node 1 examples/checkpoint/fsdp2.py --dir checkpoints --steps 60

Runs on CPUs with gloo, and on GPUs with NCCL. Each rank saves the shards it has; the second command
loads what two ranks have saved on one.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import undaunted
from undaunted.checkpointing import Checkpointer

WIDTH = 256
LAYERS = 4


class Training:
    """Model and optimizer, saved and loaded together under names that no sharding changes."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, object]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, dict[str, object]]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def main() -> None:
    args = parse_arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    mesh = init_device_mesh(device, (dist.get_world_size(),))

    torch.manual_seed(0)  # the same initial parameters on every rank
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    model = nn.Sequential(*blocks).to(device)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    state = {"training": Training(model, optimizer)}
    with Checkpointer(args.dir, keep=2) as checkpoints:
        start = checkpoints.load(state) or 0
        if dist.get_rank() == 0:
            print(f"starting after step {start}", flush=True)
        loss = float("nan")
        for step in range(start + 1, args.steps + 1):
            undaunted.step(step)
            loss = train_step(model, optimizer, step, device)
            if step % args.every == 0:
                checkpoints.save(step, state)
    if dist.get_rank() == 0:
        print(f"step {args.steps}, loss {loss:.6f}", flush=True)
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a sharded model with checkpoints.")
    parser.add_argument("--dir", required=True, help="folder of the checkpoints")
    parser.add_argument("--steps", type=int, default=40, help="to train (default: 40)")
    parser.add_argument("--every", type=int, default=10, help="steps per checkpoint (default: 10)")
    return parser.parse_args()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, device: str) -> float:
    """Learn the identity from numbers that only step and rank decide; return the loss."""
    generator = torch.Generator().manual_seed(step * 1000 + dist.get_rank())
    numbers = torch.randn(16, WIDTH, generator=generator).to(device)
    loss = (model(numbers) - numbers).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


if __name__ == "__main__":
    main()
