"""Wraps the training function of a program of Megatron's kind, as its module of this name does."""

import os
import socket
from datetime import timedelta
from typing import Optional

import checkpoints
import torch.distributed as dist

from nvidia_resiliency_ext import inprocess


class AbortCheckpoint(inprocess.abort.Abort):
    def __call__(self, frozen_state):
        checkpoints.abort()
        return frozen_state


def destroy_state():
    """What a finalizer lets go of: here nothing but the word that it was called."""
    print(f"finalized in process {os.environ['PROCESS']}", flush=True)


def wrap(train, args):
    active = args.active_world_size or int(os.environ["WORLD_SIZE"])
    os.environ["PROCESS"] = os.environ["RANK"]
    ranks = inprocess.rank_assignment
    layers = [
        ranks.Layer(min_ranks=active, max_ranks=active, flag=ranks.LayerFlag.RESERVE),
        ranks.Layer(
            min_ranks=1,
            max_ranks=active,
            key_or_fn=lambda _: socket.gethostname(),
            flag=ranks.LayerFlag.RESERVE,
        ),
    ]
    wrapper = inprocess.Wrapper(
        store_kwargs={
            "timeout": timedelta(seconds=300),
            "port": int(os.environ["MASTER_PORT"]) + 2,
        },
        initialize=inprocess.Compose(
            inprocess.initialize.RetryController(min_world_size=active, max_iterations=3),
            inprocess.nested_restarter.NestedRestarterHandlingCompleted(),
        ),
        abort=inprocess.Compose(
            inprocess.abort.AbortTransformerEngine(),
            inprocess.abort.AbortTorchDistributed(),
            AbortCheckpoint(),
            inprocess.nested_restarter.NestedRestarterHandlingStarting(),
        ),
        finalize=inprocess.finalize.ThreadedFinalize(timedelta(seconds=10), destroy_state),
        health_check=inprocess.Compose(
            inprocess.health_check.CudaHealthCheck(timedelta(seconds=10)),
            inprocess.health_check.FaultCounter(max_rank_faults=3),
        ),
        rank_assignment=ranks.Tree(layers=layers),
        completion=inprocess.nested_restarter.NestedRestarterFinalized(),
        terminate=inprocess.nested_restarter.NestedRestarterAborted(),
        monitor_thread_interval=timedelta(seconds=1),
        monitor_process_interval=timedelta(seconds=1),
        progress_watchdog_interval=timedelta(seconds=1),
        heartbeat_interval=timedelta(seconds=2),
        heartbeat_timeout=timedelta(seconds=60),
        soft_timeout=timedelta(seconds=args.soft_timeout),
        hard_timeout=timedelta(seconds=90),
        barrier_timeout=timedelta(seconds=120),
        completion_timeout=timedelta(seconds=120),
        last_call_wait=timedelta(seconds=1),
        termination_grace_time=timedelta(seconds=1),
        enabled=True,
    )
    # The program's own store, at the port between those of the launcher and of the wrapper.
    store = dist.TCPStore(
        host_name=os.environ["MASTER_ADDR"],
        port=int(os.environ["MASTER_PORT"]) + 1,
        world_size=int(os.environ["WORLD_SIZE"]),
        is_master=os.environ["RANK"] == "0",
        timeout=timedelta(seconds=60),
        wait_for_workers=True,
        use_libuv=True,
    )

    def adapted(*given, call: Optional[inprocess.CallWrapper] = None):  # noqa: UP045 - as users do
        own = store if args.share_store else dist.PrefixStore(str(call.iteration), store)
        return train(*given, store=own, call=call)

    return wrapper(adapted)
