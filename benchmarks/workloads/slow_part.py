"""DDP over gloo with steps of 100 ms of sleep: PART SLOW STEPS, see `benchmarks.slow_part`.

Rank SLOW takes 30 ms longer in this part of each step. There is no line for undaunted but
`undaunted.step`.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

import undaunted

part, slow, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
is_slow = int(os.environ["RANK"]) == slow


def work(name: str, ms: float) -> None:
    time.sleep((ms + (30 if is_slow and name == part else 0)) / 1000)


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(_, tensor):
        return tensor.clone()

    @staticmethod
    def backward(_, gradient):
        work("backward", 35)
        return gradient


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)

    def forward(self, batch):
        work("forward", 20)
        return self.second(SlowBackward.apply(self.first(batch)))


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        work("optimizer", 15)
        super().step(closure)


def load():
    work("data", 10)
    return torch.randn(8, 64)


def clip(model) -> None:
    work("clipping", 5)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def log() -> None:
    work("logging", 5)


torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(Model())
optimizer = Optimizer(model.parameters(), lr=0.01)
for step in range(steps):
    undaunted.step(step)
    batch = load()
    loss = model(batch).sum()
    optimizer.zero_grad()
    loss.backward()
    clip(model)
    optimizer.step()
    log()
dist.barrier()
