"""One of two ranks that save a model in shards. Run by test_checkpoint.py.

    RANK=0 checkpoint_program.py DIRECTORY & RANK=1 checkpoint_program.py DIRECTORY

Saves steps 10, 20 and 30; writes the weights of the last one, whole, beside the directory.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from undaunted.checkpointing import Checkpointer


def main() -> None:
    (directory,) = sys.argv[1:]
    meeting, rank = f"file://{directory}.meeting", int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(33, 17), torch.nn.Linear(17, 7))
    model.register_buffer("steps", torch.zeros((), dtype=torch.int64))
    model.register_buffer("mask", torch.tensor([True, False, True]))
    model.register_buffer("short", torch.arange(9, dtype=torch.bfloat16))
    model.register_buffer("empty", torch.zeros(0, 3))
    fully_shard(model, mesh=mesh)
    columns = distribute_tensor(torch.arange(60.0).reshape(5, 12), mesh, [Shard(1)])
    state = {"model": model, "columns": columns, "lr": 0.1, "note": "first"}
    with Checkpointer(directory, keep=None) as checkpoints:
        for step in (10, 20, 30):
            with torch.no_grad():
                model[0].bias.add_(0.25)
                model.steps.add_(10)
            state["lr"] = 1.0 / step
            checkpoints.save(step, state)
    whole = {
        name: one.full_tensor() if isinstance(one, DTensor) else one
        for name, one in model.state_dict().items()
    }
    if dist.get_rank() == 0:
        torch.save(whole, f"{directory}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
