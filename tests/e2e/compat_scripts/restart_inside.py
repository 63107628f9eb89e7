"""A function that is restarted inside its processes, with faults that are injected at random.

The old place of the faults is imported; the first argument names the kind.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.inprocess.tools.inject_fault import (
    Fault,
    clear_workload_exception,
    inject_fault,
    maybe_raise_workload_exception,
)
from nvidia_resiliency_ext.inprocess.utils import format_exc

KIND = Fault[sys.argv[1]]
process = os.environ["RANK"]


@inprocess.Wrapper(
    store_kwargs={"port": int(os.environ["MASTER_PORT"]) + 1},
    initialize=inprocess.initialize.RetryController(max_iterations=4, min_world_size=2),
    abort=inprocess.Compose(
        inprocess.abort.AbortTorchDistributed(),
        inprocess.abort.AbortPersistentCheckpointProcesses(),
    ),
    health_check=inprocess.health_check.CudaHealthCheck(),
    finalize=inprocess.finalize.ThreadedFinalize(timedelta(seconds=10), clear_workload_exception),
    rank_assignment=inprocess.Compose(
        inprocess.rank_assignment.ActivateAllRanks(), inprocess.rank_assignment.ShiftRanks()
    ),
    progress_watchdog_interval=timedelta(milliseconds=200),
    soft_timeout=timedelta(seconds=20),
    hard_timeout=timedelta(seconds=30),
    monitor_process_logfile=f"{Path.cwd()}/monitor_{{rank}}.log",
)
def train(steps: int, call: inprocess.CallWrapper = None):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=call.store, rank=rank, world_size=size)
    if call.iteration == 0:
        inject_fault((KIND,), num_faults=1, keep_alive=1, delay=0.5, seed=7)
    with call.disable_hang_protection():
        dist.barrier()
    # The first time there is no end, so that the fault comes in any case.
    step = 0
    while step < steps or call.iteration == 0:
        call.ping()
        assert call.progress_watchdog.timestamp.manual is not None
        assert call.monitor_process.is_alive()
        maybe_raise_workload_exception()
        with call.atomic():
            total = torch.ones(1)
        dist.all_reduce(total)
        step += 1
    dist.destroy_process_group()
    return f"iteration {call.iteration}: {total.item():.0f} ranks"


try:
    print(f"process {process}: {train(50)}", flush=True)
except inprocess.exception.RestartAbort as error:
    print(f"process {process}: aborted, {format_exc(error)}", flush=True)
    raise
