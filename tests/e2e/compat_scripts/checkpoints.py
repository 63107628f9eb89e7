"""Asynchronous checkpoints of a program of Megatron's kind."""

from functools import partial
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from nvidia_resiliency_ext.checkpointing.async_ckpt import filesystem_async
from nvidia_resiliency_ext.checkpointing.async_ckpt.cached_metadata_filesystem_reader import (
    CachedMetadataFileSystemReader,
)
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import (
    FileSystemWriterAsync,
    get_write_results_queue,
)
from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import (
    CheckpointMetadataCache,
    save_state_dict_async_finalize,
    save_state_dict_async_plan,
)

queue = None
cache = CheckpointMetadataCache()


def save(args, iteration, state):
    folder = Path(args.save) / f"iter_{iteration:07d}"
    assert hasattr(filesystem_async, "_results_queue")
    get_write_results_queue()
    writer = FileSystemWriterAsync(folder, thread_count=2, use_cached_data_structure=True)
    planned = save_state_dict_async_plan(
        state, writer, None, 0, planner=None, enable_cache=True, metadata_cache=cache
    )
    function, preload, arguments = writer.get_save_function_and_args()
    request = AsyncRequest(function, arguments, [], preload_fn=preload)
    request.add_finalize_fn(partial(save_state_dict_async_finalize, *planned))
    request.add_finalize_fn(partial(remember, args, iteration))
    if not args.async_save:
        request.execute_sync()
        return
    global queue
    if queue is None:
        queue = AsyncCallsQueue(persistent=True)
    queue.schedule_async_request(request)


def remember(args, iteration):
    if dist.get_rank() == 0:
        path = Path(args.save) / "latest_checkpointed_iteration.txt"
        path.with_suffix(".new").write_text(str(iteration))
        path.with_suffix(".new").replace(path)
        print(f"saved iteration {iteration}", flush=True)
    dist.barrier()


def maybe_finalize_async_save(blocking=False):
    if queue is not None:
        queue.maybe_finalize_async_calls(blocking, no_dist=False)


def abort():
    """Give up what is on the way; the next save begins with a new queue."""
    global queue
    if queue is not None:
        queue.close(abort=True)
        queue = None
    if filesystem_async._results_queue is not None:
        filesystem_async._results_queue._manager.shutdown()


def load(args, state):
    """Fill the state from the newest checkpoint; return its iteration, 0 = there is none."""
    found = [0]
    if dist.get_rank() == 0:
        path = Path(args.save) / "latest_checkpointed_iteration.txt"
        found = [int(path.read_text()) if path.exists() else 0]
    dist.broadcast_object_list(found)
    if found[0]:
        folder = Path(args.save) / f"iter_{found[0]:07d}"
        dcp.load(state, storage_reader=CachedMetadataFileSystemReader(folder))
    return found[0]
