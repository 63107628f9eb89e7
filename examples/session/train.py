"""DDP training in a session: it is watched, saves beside its steps, stops in order, checks itself.

Run it with one of

    undaunted run --nproc-per-node 2 --max-restarts 3 examples/session/train.py checkpoints
    torchrun --nproc-per-node 2 --max-restarts 0 examples/session/train.py checkpoints

Kill a rank: it is restarted, and goes on from the newest checkpoint. Tell it to stop with SIGTERM
or Ctrl-C: all ranks stop after the same step, save that one, and the exit code is 75. Started
again, it goes on there. A loss that is no number is computed again, then on another place, before
anybody believes it; replicas that have become different are noticed.
"""

import logging
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from undaunted.checkpointing import Checkpointer
from undaunted.training import Replicas, Rerun, Session

STEPS, SAVE_EVERY = 400, 50


def main(directory):
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = {"model": model.module, "optimizer": optimizer}
    checkpoints = Checkpointer(directory)

    def save(step):
        checkpoints.save(step + 1, state)

    replicas = Replicas(model, every=100)
    with Session(save=save, rerun=Rerun(folder=directory)) as session:
        start = checkpoints.load(state) or 0
        print(f"rank {dist.get_rank()} starts at step {start}", flush=True)
        for step in range(start, STEPS):
            with session.step(step):
                inputs = batch(step)
                for _ in session.attempts():
                    optimizer.zero_grad()
                    loss = model(inputs).square().mean()
                    loss.backward()
                    session.check(loss, "loss")
                optimizer.step()
            replicas(step)
            if step % SAVE_EVERY == SAVE_EVERY - 1:
                session.save(step)
            if session.should_stop(step):
                break
    checkpoints.close()  # what is being saved is finished
    if session.stop:
        print(f"rank {dist.get_rank()} stopped after step {session.stop.iteration}", flush=True)
    return session.exit_code


def batch(step):
    """The same for each start of the job."""
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    return torch.randn(32, 16, generator=generator)


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(message)s")
    dist.init_process_group("gloo")
    code = main(sys.argv[1])
    dist.destroy_process_group()
    sys.exit(code)
