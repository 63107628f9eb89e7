"""DDP with checkpoints and a reserve rank, restarted inside its processes.

The last of four processes is a reserve; the other three train. FAULT makes something happen in
process 1, once, at step 30: "exception", "kill" or "hang". It is tried best with plain processes,
as some launchers end all of them when one is killed:

    export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=4 FAULT=kill
    for rank in 0 1 2 3; do RANK=$rank python examples/inprocess/advanced.py & done; wait

    FAULT=kill undaunted run --nproc-per-node 4 --ft-restart-policy min-healthy \\
        --ft-restart-lost-ranks advanced.py
    FAULT=kill torchrun --nproc-per-node 4 --max-restarts 1 advanced.py  # restarts all processes

GPUs and nccl are used where there is a GPU for every process, else CPUs and gloo.
"""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import undaunted
from undaunted import inprocess

STEPS = 60
FAULT_AT = 30
SAVE_EVERY = 10
ACTIVE = 3  # processes that train; the others are reserves
CHECKPOINT = Path(os.environ.get("CHECKPOINT", "inprocess.pt"))
PROCESS = int(os.environ["RANK"])  # for the life of the process; RANK itself may change
DEVICE = int(os.environ.get("LOCAL_RANK", PROCESS))
WITH_CUDA = torch.cuda.device_count() >= int(
    os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])
)


def say(text: str) -> None:
    print(f"process {PROCESS}: {text}", flush=True)


def release_memory() -> None:
    if WITH_CUDA:
        torch.cuda.empty_cache()


@inprocess.Wrapper(
    # RestartAbort, which ends the job, after 5 iterations or with fewer than 2 that train.
    initialize=inprocess.initialize.RetryController(max_iterations=5, min_active_world_size=2),
    finalize=inprocess.finalize.ThreadedFinalize(timedelta(seconds=10), release_memory),
    health_check=inprocess.health_check.CudaHealthCheck(timedelta(seconds=10)),
    rank_assignment=inprocess.Compose(
        inprocess.rank_assignment.MaxActiveWorldSize(ACTIVE),  # second
        inprocess.rank_assignment.ShiftRanks(),  # first
    ),
    soft_timeout=timedelta(seconds=10),  # without ping() for so long, all are restarted
    hard_timeout=timedelta(seconds=20),
)
def train(call: inprocess.CallWrapper) -> float:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    join(call, rank, size)
    # In a function of its own: DDP must be gone before its process group is. The other way round,
    # torch waits for gloo's threads with the GIL held, which these may want as well: for ever.
    loss = do_steps(call, rank)
    dist.destroy_process_group()
    return loss


def do_steps(call: inprocess.CallWrapper, rank: int) -> float:
    model, optimizer, first = load()
    loss = torch.zeros(())
    for step in range(first, STEPS):
        undaunted.step(step)
        call.ping()  # "about to do a step": from now on soft_timeout counts from the last ping
        if step == FAULT_AT and call.iteration == 0:
            inject_fault()
        loss = train_step(model, optimizer, inputs_of(step, rank))
        if step % SAVE_EVERY == SAVE_EVERY - 1:
            with call.atomic():  # a restart waits until the checkpoint is complete
                save(model, optimizer, step, rank)
    return loss.item()


def join(call: inprocess.CallWrapper, rank: int, size: int) -> None:
    """Make the process group of this iteration, in a store that is new as well."""
    backend = "cpu:gloo,cuda:nccl" if WITH_CUDA else "gloo"
    if WITH_CUDA:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group(backend, store=call.store, rank=rank, world_size=size)
    # An nccl communicator can be aborted only once it is there: make it now.
    dist.all_reduce(torch.ones(1, device=device()))
    say(f"iteration {call.iteration}, rank {rank} of {size}")


def device() -> torch.device:
    return torch.device("cuda", DEVICE) if WITH_CUDA else torch.device("cpu")


def load() -> tuple[DistributedDataParallel, torch.optim.Optimizer, int]:
    """Model, optimizer and the first step to do: from the checkpoint, if there is one."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    # Rank 0 says what all do: another rank might see a file that is older, or newer.
    saved = [torch.load(CHECKPOINT, weights_only=True) if may_load() else None]
    dist.broadcast_object_list(saved)
    if saved[0] is None:
        return model, optimizer, 0
    model.module.load_state_dict(saved[0]["model"])
    optimizer.load_state_dict(saved[0]["optimizer"])
    return model, optimizer, saved[0]["step"] + 1


def may_load() -> bool:
    return dist.get_rank() == 0 and CHECKPOINT.exists()


def inputs_of(step: int, rank: int) -> torch.Tensor:
    """Made of step and rank alone, the data after a restart are those that would have come."""
    seeded = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(32, 8, generator=seeded).to(device())


def train_step(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, inputs: torch.Tensor
) -> torch.Tensor:
    loss: torch.Tensor = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def save(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int, rank: int
) -> None:
    """Rank 0 writes; the file is complete, or it is the one before."""
    if rank == 0:
        state = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
        }
        torch.save(state, CHECKPOINT.with_suffix(".new"))
        CHECKPOINT.with_suffix(".new").replace(CHECKPOINT)
        say(f"step {step} is saved")


def inject_fault() -> None:
    """What FAULT says, in process 1, unless a launcher has restarted the processes for it."""
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    fault = os.environ.get("FAULT") if first and PROCESS == 1 else None
    if fault == "exception":
        raise RuntimeError("a fault, to see what happens")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hang":
        time.sleep(1000)


if __name__ == "__main__":
    result = train()
    say("was not needed" if result is None else f"done, loss {result:.3f}")
