"""Local checkpoints with copies on another node.

In the first round rank 1 is killed, and its disk is lost.
"""

import os
import shutil
import signal

import torch
import torch.distributed as dist

from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue
from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import (
    LocalCheckpointManager,
)
from nvidia_resiliency_ext.checkpointing.local.replication.strategies import (
    CliqueReplicationStrategy,
)

dist.init_process_group("gloo")
rank = dist.get_rank()
disk = f"node{rank}"  # every rank plays a node
copies = CliqueReplicationStrategy.from_replication_params(replication_jump=1, replication_factor=2)
manager = LocalCheckpointManager(disk, session_id="run", repl_strategy=copies)
queue = AsyncCallsQueue(persistent=False)

state = {"weight": torch.zeros(100), "step": 0}
iteration = manager.find_latest()
if iteration != -1:
    loaded, part = manager.load()
    state = loaded.state_dict
    print(f"rank {rank}: loaded {part}, {state['weight'].unique().tolist()}", flush=True)

for step in range(state["step"] + 1, 5):
    weight = torch.full((100,), float(step * 10 + rank))
    saved = BasicTensorAwareStateDict({"weight": weight, "step": step})
    queue.schedule_async_request(manager.save(saved, step, is_async=True))
    queue.maybe_finalize_async_calls(blocking=True, no_dist=False)
    if step == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        dist.barrier()
        if rank == 1:
            shutil.rmtree(disk)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
queue.close()
manager.close()
print(f"rank {rank}: done", flush=True)
dist.destroy_process_group()
