"""Asynchronous checkpoints of two kinds: torch.save, and shards of a DTensor for any ranks."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from nvidia_resiliency_ext.checkpointing.async_ckpt.cached_metadata_filesystem_reader import (
    CachedMetadataFileSystemReader,
)
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import (
    AsyncCallsQueue,
    AsyncRequest,
    abort_nvrx_checkpoint,
)
from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import (
    init_checkpoint_metadata_cache,
    save_state_dict_async_finalize,
    save_state_dict_async_plan,
)
from nvidia_resiliency_ext.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint

dist.init_process_group("gloo")
rank = dist.get_rank()

plain = TorchAsyncCheckpoint()
state = {"weight": torch.arange(1000.0)}
plain.async_save(state, f"plain{rank}.pt")
state["weight"].zero_()  # the content is fixed already
plain.finalize_async_save(blocking=True)
print(f"rank {rank}: {torch.load(f'plain{rank}.pt')['weight'].sum().item():.0f}", flush=True)
plain.close()

mesh = init_device_mesh("cpu", (dist.get_world_size(),))
sharded = {"table": distribute_tensor(torch.arange(64.0), mesh, [Shard(0)])}
init_checkpoint_metadata_cache()
queue = AsyncCallsQueue()
for step in (1, 2, 3):
    writer = FileSystemWriterAsync(f"step{step}", thread_count=2)
    planned = save_state_dict_async_plan(sharded, writer, enable_cache=True)
    sharded["table"].to_local().add_(1)
    save, preload, arguments = writer.get_save_function_and_args()
    request = AsyncRequest(save, arguments, [], preload_fn=preload)
    request.add_finalize_fn(lambda done=planned: save_state_dict_async_finalize(*done))
    queue.schedule_async_request(request)
    while queue.get_num_unfinalized_calls() > 1:
        queue.maybe_finalize_async_calls(blocking=True)
finalized = queue.maybe_finalize_async_calls(blocking=True)
queue.close()

loaded = {"table": distribute_tensor(torch.zeros(64), mesh, [Shard(0)])}
dcp.load(loaded, storage_reader=CachedMetadataFileSystemReader("step3"))
total = loaded["table"].full_tensor().sum().item()
print(f"rank {rank}: call {finalized[-1]}, {total:.0f}", flush=True)
abort_nvrx_checkpoint()
assert ".metadata" in os.listdir("step3")
dist.destroy_process_group()
