"""Training whose gradients are computed in two ways, so that a wrong bit is found.

undaunted chaos --nproc-per-node 2 opinion.py {dir} [--go-on] [--bug]

With --bug a repeated step adds its gradients to those of the first run.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from undaunted.training import Rerun, Session

STEPS = 40

parser = argparse.ArgumentParser()
parser.add_argument("dir", type=Path)
parser.add_argument("--go-on", action="store_true")
parser.add_argument("--bug", action="store_true")
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
state = args.dir / f"state-{rank}.pt"
torch.manual_seed(1)
model = torch.nn.Linear(8, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
start = 0
if state.exists():
    saved = torch.load(state)
    start = saved["next"]
    model.load_state_dict(saved["model"])
    torch.set_rng_state(saved["random"])


def save(step: int) -> None:
    content = {"next": step + 1, "model": model.state_dict(), "random": torch.get_rng_state()}
    torch.save(content, state.with_suffix(".new"))
    state.with_suffix(".new").rename(state)


def gradient_of(inputs: torch.Tensor, errors: torch.Tensor) -> torch.Tensor:
    """What the backward pass has to come to."""
    return 2 / len(errors) * errors.detach() @ inputs


verdicts = ("transient_error", "persistent_error") if args.go_on else ()
rerun = Rerun(folder=args.dir / "questions", go_on_after=verdicts)
with Session(save=save, rerun=rerun) as session:
    for step in range(start, STEPS):
        with session.step(step):
            inputs = torch.rand(16, 8, generator=torch.Generator().manual_seed(2 * step + rank))
            optimizer.zero_grad()
            for _ in session.attempts():
                if not args.bug:
                    optimizer.zero_grad()
                errors = model(inputs).squeeze(1) - inputs.sum(1) + 0.01 * torch.rand(16)
                errors.square().mean().backward()
                right = torch.allclose(model.weight.grad[0], gradient_of(inputs, errors))
                session.check(0.0 if right else math.nan, "gradient")
            dist.all_reduce(model.weight.grad)
            optimizer.step()
        if session.should_stop(step):
            break
dist.destroy_process_group()
sys.exit(session.exit_code)
