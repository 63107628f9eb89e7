"""DDP training that saves beside its steps, under the names users of NVRx know.

Run it with one of

    undaunted run --nproc-per-node 2 --max-restarts 1 examples/checkpoint/async_ddp.py checkpoints
    torchrun --nproc-per-node 2 examples/checkpoint/async_ddp.py checkpoints

Started again, it goes on from the newest checkpoint, on any number of ranks.
"""

import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from undaunted.checkpointing.async_ckpt.cached_metadata_filesystem_reader import (
    CachedMetadataFileSystemReader,
)
from undaunted.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from undaunted.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
from undaunted.checkpointing.async_ckpt.state_dict_saver import (
    save_state_dict_async_finalize,
    save_state_dict_async_plan,
)

STEPS = 100
SAVE_EVERY = 20


def state_of(model, optimizer):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def save(queue, folder, state):
    writer = FileSystemWriterAsync(folder)
    planned = save_state_dict_async_plan(state, writer, enable_cache=True)
    # Here the content is fixed: training may go on.
    write, preload, arguments = writer.get_save_function_and_args()
    finish = partial(save_state_dict_async_finalize, *planned)
    queue.schedule_async_request(
        AsyncRequest(write, tuple(arguments), [finish], preload_fn=preload)
    )


def newest(directory):
    """A folder without .metadata is not finished, or never will be."""
    steps = [int(path.parent.name.removeprefix("step-")) for path in directory.glob("*/.metadata")]
    return max(steps, default=0)


def main(directory):
    dist.init_process_group("gloo")
    train(directory)  # DistributedDataParallel goes before its group, or torch may hang
    dist.destroy_process_group()


def train(directory):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())

    start = newest(directory)
    if start:
        state = state_of(model, optimizer)
        dcp.load(state, storage_reader=CachedMetadataFileSystemReader(directory / f"step-{start}"))
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
    if dist.get_rank() == 0:
        print(f"starting at step {start}", flush=True)

    AsyncCallsQueue.warmup_persistent_caller(dist.get_rank())
    queue = AsyncCallsQueue()
    for step in range(start + 1, STEPS + 1):
        seeded = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        loss = model(torch.randn(16, 8, generator=seeded)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % SAVE_EVERY == 0:
            save(queue, directory / f"step-{step}", state_of(model, optimizer))
        queue.maybe_finalize_async_calls()
    queue.close()
    if dist.get_rank() == 0:
        print(f"done, saved step {newest(directory)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoints"))
