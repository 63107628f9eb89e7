"""Runs a training script in which something goes wrong, once.

`disturbed.py KIND:RANK:UPDATE:FILE train.py ...`; in an update of its optimizer a rank is in a loop
(endless, in Python) or in a wrong-collective (one that no other rank calls). With sigterm-eval it
says after a batch of an evaluation, so many updates or more after the start, that the launcher is
to get the signal, and goes on when the ranks are to stop. FILE says that it has happened, and when.
"""

import os
import runpy
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook


def loop():
    while True:
        pass


def wrong_collective():
    dist.broadcast(torch.ones(7), src=dist.get_rank())


kind, rank, update, file = sys.argv[1].split(":")
left = int(update)


def sigterm_in_evaluation():
    from undaunted.faults.calling import call
    from undaunted.training import Session

    leaves = Session.leaves_evaluation

    def call_and_leave(session, **given):
        iteration = session.iteration
        if iteration >= left and os.environ["RANK"] == rank and not Path(file).exists():
            Path(file).write_text(str(time.monotonic_ns()))
            call(kind, rank=int(rank), iteration=iteration)
            until = time.monotonic() + 10
            while not session._page.stop_word and time.monotonic() < until:
                time.sleep(0.002)
        return leaves(session, **given)

    Session.leaves_evaluation = call_and_leave


def before_update(*_):
    global left
    left -= 1
    if left == 0 and os.environ["RANK"] == rank and not Path(file).exists():
        Path(file).write_text(str(time.monotonic_ns()))
        loop() if kind == "loop" else wrong_collective()


if kind == "sigterm-eval":
    sigterm_in_evaluation()
else:
    register_optimizer_step_pre_hook(before_update)
sys.argv = sys.argv[2:]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
