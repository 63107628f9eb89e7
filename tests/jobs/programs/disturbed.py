"""Runs a training script in which a rank goes wrong, once, in an update of its optimizer.

`disturbed.py KIND:RANK:UPDATE:FILE train.py ...`; KIND is loop (endless, in Python) or
wrong-collective (one that no other rank calls). FILE says that it has happened, and when.
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


def before_update(*_):
    global left
    left -= 1
    if left == 0 and os.environ["RANK"] == rank and not Path(file).exists():
        Path(file).write_text(str(time.monotonic_ns()))
        loop() if kind == "loop" else wrong_collective()


register_optimizer_step_pre_hook(before_update)
sys.argv = sys.argv[2:]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
