"""Checkpoints on the disks of the nodes, each with a copy on another node."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import undaunted
from undaunted.checkpointing.async_ckpt.core import AsyncCallsQueue
from undaunted.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from undaunted.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager
from undaunted.checkpointing.local.replication.strategies import CliqueReplicationStrategy

STEPS, EVERY = 60, 10

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters())

# On real nodes: the same path everywhere, on a disk of the node, and replication_jump=None (the
# ranks of a node). Here every rank plays a node.
disk = Path(*sys.argv[1:] or ["disks"]) / f"node{rank}"
copies = CliqueReplicationStrategy.from_replication_params(replication_jump=1, replication_factor=2)
manager = LocalCheckpointManager(disk, repl_strategy=copies)
queue = AsyncCallsQueue()

start = 0
if manager.find_latest() != -1:
    loaded, checkpoint = manager.load()
    state = loaded.state_dict
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]
    print(f"rank {rank}: loaded step {start}", flush=True)

for step in range(start + 1, STEPS + 1):
    undaunted.step(step)
    optimizer.zero_grad()
    # Of step and rank alone: after a restart the same data come as would have come.
    seeded = torch.Generator().manual_seed(1000 * step + rank)
    model(torch.randn(8, 16, generator=seeded)).square().mean().backward()
    optimizer.step()
    if step % EVERY == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        queue.schedule_async_request(manager.save(BasicTensorAwareStateDict(state), step, True))
    # A save may take five steps; then it is waited for.
    queue.maybe_finalize_async_calls(blocking=step % EVERY == 5)

queue.close()
manager.close()
if rank == 0:
    print(f"step {STEPS}", flush=True)
dist.destroy_process_group()
