r"""A loop with Accelerate that survives crashes, hangs and preemption.

A rank is killed; with "sleep" in the place of "sigkill" it hangs, which is found after 10 s with
`--ft-rank-section-timeouts step:10 --ft-rank-out-of-section-timeout 10`:

    undaunted run --nproc-per-node 2 --max-restarts 3 \
        --inject-fault "sigkill:rank=1,iteration=25" loop.py

The same checksum is printed without the fault. More in docs/huggingface.md.
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import TensorDataset

from undaunted.data import Loader
from undaunted.training import Session

accelerator = Accelerator(cpu=True)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(), torch.nn.Linear(32, 1))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
loader = Loader(TensorDataset(torch.randn(1000, 8)), global_batch=32, micro_batch=16, seed=1)
accelerator.register_for_checkpointing(loader)
newest = Path("states/newest")


def save(step):
    accelerator.save_state(f"states/{step + 1}")
    accelerator.wait_for_everyone()  # all ranks have written theirs
    if accelerator.is_main_process:
        written = newest.with_suffix(".part")
        written.write_text(str(step + 1))
        written.replace(newest)


def load():
    if not newest.exists():
        return 0
    start = int(newest.read_text())
    accelerator.load_state(f"states/{start}")
    return start


with Session(save=save) as session:
    for step in range(load(), 60):
        with session.step(step):
            for (rows,) in loader.step():
                with loader.accumulate(model):
                    loss = model(rows.to(accelerator.device)).square().mean()
                    accelerator.backward(loss * loader.scale)
            optimizer.step()
            optimizer.zero_grad()
        if step % 10 == 9:
            session.save(step)
        if session.should_stop(step):
            break
if accelerator.is_main_process and not session.stop:
    checksum = sum(float(each.detach().abs().sum()) for each in model.parameters())
    print(f"checksum {checksum:.6f}", flush=True)
sys.exit(session.exit_code)
