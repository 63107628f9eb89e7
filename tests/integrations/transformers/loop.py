"""A script of Accelerate: a loop with dropout, shuffled data and its own saves.

`python loop.py FOLDER [name=value ...]`: each rank writes a digest of the parameters at the end to
FOLDER/result-RANK. What goes wrong, once: kill, hang, signal (in a step), signal_evaluation (in its
second batch) or kill_save (this rank's part is missing then).
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, TensorDataset

from undaunted.progress.writer import current_writer
from undaunted.training import Session

RANK = int(os.environ.get("RANK", "0"))
FOLDER = Path(sys.argv[1])
GIVEN = dict(word.split("=") for word in sys.argv[2:])
STEPS, SAVES = int(GIVEN.get("steps", 24)), 5
STATES = FOLDER / "states"


def disturbed(kind, step):
    wish, once = GIVEN.get("disturb"), FOLDER / "disturbed"
    if wish != f"{kind}:{RANK}:{step}" or once.exists():
        return False
    once.touch()
    return True


accelerator = Accelerator(
    cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)
)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(), torch.nn.Linear(32, 1))
data = TensorDataset(torch.randn(96, 8, generator=torch.Generator().manual_seed(2)))
# With a generator of its own, a loader that is started again draws no number of the dropout's.
loader = DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator())
held_out = DataLoader(data, batch_size=1)
model, optimizer, loader, held_out = accelerator.prepare(
    model, torch.optim.AdamW(model.parameters(), lr=0.01), loader, held_out
)


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def be_told_to_stop():
    os.kill(os.getpid(), signal.SIGTERM)
    while not current_writer().stop_word:  # the rest may take less than the launcher's answer
        time.sleep(0.002)


def save(step):
    if disturbed("kill_save", step + 1):
        accelerator.register_save_state_pre_hook(die)
    accelerator.save_state(str(STATES / f"{step + 1}"))
    accelerator.wait_for_everyone()  # all ranks have written theirs
    if accelerator.is_main_process:
        (STATES / "newest.part").write_text(f"{step + 1}")
        (STATES / "newest.part").replace(STATES / "newest")


def load():
    if not (STATES / "newest").exists():
        return 0
    start = int((STATES / "newest").read_text())
    accelerator.load_state(str(STATES / f"{start}"))
    return start


def evaluate(step):
    model.eval()
    losses = []
    for number, (batch,) in enumerate(session.evaluating(held_out)):
        with torch.no_grad():
            losses.append(accelerator.gather_for_metrics(model(batch).square()))
        if number == 1 and disturbed("signal_evaluation", step):
            be_told_to_stop()
    print(f"rank {RANK} has evaluated {len(torch.cat(losses))} after {step}", flush=True)
    model.train()


def batches(start):
    for epoch in range(start // len(loader), STEPS // len(loader)):
        loader.set_epoch(epoch)
        yield from skip_first_batches(loader, max(0, start - epoch * len(loader)))


with Session(save=save) as session:
    start = load()
    print(f"rank {RANK} goes on from {start}", flush=True)
    for step, (batch,) in enumerate(batches(start), start):
        with session.step(step):
            print(f"rank {RANK} step {step}", flush=True)
            accelerator.backward(model(batch).square().mean())
            if disturbed("kill", step):
                die()
            if disturbed("hang", step):
                time.sleep(3600)
            if disturbed("signal", step):
                be_told_to_stop()
            optimizer.step()
            optimizer.zero_grad()
        if step % SAVES == SAVES - 1:
            session.save(step)
        if step % 8 == 7:
            evaluate(step)
        if session.should_stop(step):
            break
if session.stop is None:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    (FOLDER / f"result-{RANK}").write_text(digest.hexdigest())
    print(f"rank {RANK} is done", flush=True)
accelerator.end_training()
sys.exit(session.exit_code)
